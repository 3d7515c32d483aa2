//! Snapshots as bytes on disk: the history is whole pages, the state the recurrent states and windows of all layers, as they lie on
//! the device. All devices are little-endian, as is every machine that they are in.

use std::io::{self, Read, Write};
use std::sync::Arc;

use lily_backend::{Archive, check_follows};

use crate::device::Tiles;
use crate::shapes::{PAGE, Shapes};
use crate::snapshot::{Copied, Held, Snapshot};

/// Counts changes of the format and of what the numbers in it mean, the order within a recurrent state for example.
const VERSION: u32 = 1;

/// Of this crate's code, which decides what kernels are run on: it changes with every byte of it.
const CODE: &str = env!("LILY_GPU_CODE");

/// A GPU's [`Archive`].
pub(crate) struct GpuArchive {
    format: String,
    page: u64,
    recurrent: u64,
}

impl GpuArchive {
    /// That of the device of this [fingerprint](crate::device::Device::fingerprint): other devices may have other bits.
    pub(crate) fn new(fingerprint: &str, tiles: Tiles, shapes: &Shapes, page: u64, recurrent: u64) -> Self {
        let format = format!("gpu {VERSION}, {CODE}, {fingerprint}, {tiles:?}, pages of {PAGE}, {shapes:?}");
        Self { format, page, recurrent }
    }

    fn pages(from: usize, to: usize) -> u64 {
        (to.div_ceil(PAGE) - from / PAGE) as u64
    }
}

fn fetched(snapshot: &Snapshot) -> io::Result<&Copied> {
    match &snapshot.0 {
        Held::Host(copied) => Ok(copied),
        Held::Device(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "the snapshot was not fetched")),
    }
}

/// As many bytes of the reader's.
fn read(count: u64, from: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(count as usize).map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.resize(count as usize, 0);
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Archive<Snapshot> for GpuArchive {
    fn format(&self) -> String {
        self.format.clone()
    }

    fn history_bytes(&self, from: usize, to: usize) -> u64 {
        Self::pages(from, to) * self.page
    }

    fn state_bytes(&self) -> u64 {
        self.recurrent
    }

    fn memory_bytes(&self, length: usize) -> u64 {
        self.history_bytes(0, length) + self.recurrent
    }

    fn transit_bytes(&self, from: usize, to: usize) -> u64 {
        self.history_bytes(from, to) + self.recurrent
    }

    fn write_history(&self, snapshot: &Snapshot, from: usize, to: &mut dyn Write) -> io::Result<()> {
        let copied = fetched(snapshot)?;
        let Some(skipped) = (from / PAGE).checked_sub(copied.first) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the snapshot was fetched from a later token on"));
        };
        copied.pages.iter().skip(skipped).try_for_each(|page| to.write_all(page))
    }

    fn write_state(&self, snapshot: &Snapshot, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(&fetched(snapshot)?.recurrent)
    }

    fn read_history(
        &self,
        onto: Option<&Snapshot>,
        from: usize,
        to: usize,
        bytes: &mut dyn Read,
    ) -> io::Result<Snapshot> {
        check_follows(onto.map_or(0, Snapshot::length), from, to)?;
        let kept = from / PAGE;
        let (base, first, mut pages) = match onto.map(|onto| &onto.0) {
            None => (None, 0, Vec::new()),
            Some(Held::Device(frozen)) => (Some(Arc::clone(frozen)), kept, Vec::new()),
            Some(Held::Host(onto)) => {
                let first = onto.first.min(kept);
                (onto.base.clone(), first, onto.pages[..kept - first].to_vec())
            }
        };
        for _ in 0..Self::pages(from, to) {
            pages.push(Arc::new(read(self.page, bytes)?));
        }
        Ok(Snapshot(Held::Host(Arc::new(Copied { length: to, first, base, pages, recurrent: Vec::new() }))))
    }

    fn read_state(&self, history: Snapshot, bytes: &mut dyn Read) -> io::Result<Snapshot> {
        let Copied { length, first, base, pages, .. } = fetched(&history)?;
        let (base, pages) = (base.clone(), pages.clone());
        let recurrent = read(self.recurrent, bytes)?;
        Ok(Snapshot(Held::Host(Arc::new(Copied { length: *length, first: *first, base, pages, recurrent }))))
    }
}

#[cfg(test)]
mod tests {
    use lily_backend::Archive;
    use lily_checkpoint::Config;

    use super::{CODE, GpuArchive};
    use crate::device::Tiles;
    use crate::shapes::Shapes;

    /// Other code decides otherwise what kernels are run on.
    #[test]
    fn the_codes_name_is_in_it() {
        let config =
            Config::parse(include_bytes!("../../../models/qwen3.6-35b-a3b/config.json")).expect("a sound config");
        let shapes = Shapes::new(&config).expect("supported");
        let format = GpuArchive::new("one GPU", Tiles::Simdgroup, &shapes, 0, 0).format();
        assert!(CODE.len() == 16 && format.contains(CODE), "{format}");
    }

    /// Another device, kernel or compiler, other tiles, another model: another name, so that no file is taken for one's own.
    #[test]
    fn what_may_have_other_bits_has_another_name() {
        let config =
            Config::parse(include_bytes!("../../../models/qwen3.6-35b-a3b/config.json")).expect("a sound config");
        let shapes = Shapes::new(&config).expect("supported");
        let mut larger = shapes.clone();
        larger.vocabulary += 1;
        let mut names = [
            ("one GPU", Tiles::Simdgroup, &shapes),
            ("another GPU", Tiles::Simdgroup, &shapes),
            ("one GPU", Tiles::Tensor, &shapes),
            ("one GPU", Tiles::Simdgroup, &larger),
        ]
        .map(|(fingerprint, tiles, shapes)| GpuArchive::new(fingerprint, tiles, shapes, 0, 0).format());
        names.sort();
        assert!(names.windows(2).all(|names| names[0] != names[1]), "{names:?}");
    }
}
