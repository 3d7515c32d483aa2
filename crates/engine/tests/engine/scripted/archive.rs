//! Snapshots of the scripted backend as bytes, on a disk that can stand still or be full.

use std::io::{self, Read, Write};
use std::sync::Arc;

use lily_backend::Archive;

use super::{Frozen, Held, PAGE, PAGE_BYTES, STATE_BYTES, Script};

/// The history is the pages' hashes, the state the rest.
pub(super) struct ScriptedArchive(pub(super) Script);

impl Archive<Arc<Frozen>> for ScriptedArchive {
    fn format(&self) -> String {
        "scripted".into()
    }

    fn history_bytes(&self, from: usize, to: usize) -> u64 {
        (to / PAGE - from / PAGE) as u64 * 8
    }

    fn state_bytes(&self) -> u64 {
        12
    }

    fn memory_bytes(&self, length: usize) -> u64 {
        STATE_BYTES + (length / PAGE) as u64 * PAGE_BYTES
    }

    fn write_history(&self, snapshot: &Arc<Frozen>, from: usize, to: &mut dyn Write) -> io::Result<()> {
        self.0.pass_disk();
        snapshot.held.pages[from / PAGE..].iter().try_for_each(|hash| to.write_all(&hash.to_le_bytes()))
    }

    fn write_state(&self, snapshot: &Arc<Frozen>, to: &mut dyn Write) -> io::Result<()> {
        if self.0.inner().disk_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        to.write_all(&snapshot.held.name.to_le_bytes())?;
        to.write_all(&snapshot.held.hash.to_le_bytes())
    }

    fn read_history(
        &self,
        onto: Option<&Arc<Frozen>>,
        from: usize,
        to: usize,
        bytes: &mut dyn Read,
    ) -> io::Result<Arc<Frozen>> {
        self.0.pass_disk();
        let mut held = onto.map(|onto| onto.held.clone()).unwrap_or_default();
        assert!(held.length >= from, "a hole in the history");
        held.pages.truncate(from / PAGE);
        held.length = to;
        let mut hash = [0; 8];
        for _ in from / PAGE..to / PAGE {
            bytes.read_exact(&mut hash)?;
            held.pages.push(u64::from_le_bytes(hash));
        }
        Ok(self.0.freeze(held))
    }

    fn read_state(&self, history: Arc<Frozen>, bytes: &mut dyn Read) -> io::Result<Arc<Frozen>> {
        let (mut name, mut hash) = ([0; 4], [0; 8]);
        bytes.read_exact(&mut name)?;
        bytes.read_exact(&mut hash)?;
        let (name, hash) = (u32::from_le_bytes(name), u64::from_le_bytes(hash));
        Ok(self.0.freeze(Held { name, hash, ..history.held.clone() }))
    }
}
