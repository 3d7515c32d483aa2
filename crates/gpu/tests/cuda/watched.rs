//! A device that passes everything on to another: it notes which kernels run, and changes or confines them if asked.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use lily_checkpoint::Bytes;
use lily_gpu::device::{Buffer, Constant, Device, DeviceError, Limits, Range, Ticket, Tiles};
use lily_gpu::kernel::Access;
use lily_gpu::kernels;
use lily_gpu::plan::{Dispatch, Plan};

/// The names of kernels that were part of a plan.
pub(crate) type Seen = Arc<Mutex<BTreeSet<&'static str>>>;

/// What else a watched device does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// What products are made of, whatever the device would take itself.
    pub(crate) tiles: Tiles,
    /// Each range of a dispatch lies in memory of its own: what is read or written beyond it is beyond an allocation, and what
    /// is written where it should be read is lost.
    pub(crate) confined: bool,
    /// Products through tiles of 16 rows in the place of those of 32: no plan is so short that it has them.
    pub(crate) least_tiles: bool,
    /// What new memory holds.
    pub(crate) filled_with: Option<u8>,
}

impl Watch {
    /// Nothing else than such tiles.
    pub(crate) const fn new(tiles: Tiles) -> Self {
        Self { tiles, confined: false, least_tiles: false, filled_with: None }
    }
}

/// A device that is watched.
pub(crate) struct Watched<D> {
    device: D,
    watch: Watch,
    seen: Seen,
}

impl<D: Device> Watched<D> {
    /// Adds what it sees to `seen`.
    pub(crate) fn new(device: D, watch: Watch, seen: Seen) -> Self {
        Self { device, watch, seen }
    }

    /// A dispatch by itself, over copies of those of its ranges that are parts of buffers.
    fn confine(&mut self, mut dispatch: Dispatch) -> Result<Part<D>, DeviceError> {
        let asked = dispatch.ranges.clone();
        let arguments = dispatch.kernel.arguments;
        for (index, _) in arguments.iter().enumerate().filter(|(_, argument)| argument.access == Access::Write) {
            let mut others = asked.iter().enumerate().filter(|(other, _)| *other != index);
            let alone = !others.any(|(_, other)| other.overlaps(&asked[index]));
            assert!(alone, "{} writes what it has twice: {asked:?}", dispatch.kernel.name);
        }
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (range, argument) in dispatch.ranges.iter_mut().zip(arguments) {
            if *range == range.buffer.all() {
                continue;
            }
            let own = self.allocate(range.bytes, argument.name)?.all();
            before.push((*range, own));
            if argument.access == Access::Write {
                after.push((own, *range));
            }
            *range = own;
        }
        let executable = self.device.prepare(&Plan::new(vec![dispatch], Vec::new()))?;
        Ok(Part { before, executable, after })
    }
}

/// A plan between copies.
pub(crate) struct Part<D: Device> {
    before: Vec<(Range, Range)>,
    executable: D::Executable,
    after: Vec<(Range, Range)>,
}

fn with_least_tiles(plan: &mut Plan) {
    for dispatch in &mut plan.dispatches {
        dispatch.kernel = match dispatch.kernel.name {
            "gemm_q4_32" => &kernels::GEMM_Q4_16,
            "gemm_q4_add_32" => &kernels::GEMM_Q4_ADD_16,
            _ => continue,
        };
        dispatch.threads = dispatch.kernel.max_threads;
        dispatch.grid[0] *= 2;
    }
}

impl<D: Device> Device for Watched<D> {
    type Executable = Vec<Part<D>>;

    fn name(&self) -> &str {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn tiles(&self) -> Tiles {
        self.watch.tiles
    }

    fn fingerprint(&self) -> String {
        self.device.fingerprint()
    }

    fn specialise(&mut self, constants: &[Constant]) -> Result<(), DeviceError> {
        self.device.specialise(constants)
    }

    fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, DeviceError> {
        let buffer = self.device.allocate(bytes, what)?;
        if let Some(byte) = self.watch.filled_with {
            const PIECE: usize = 1 << 20;
            let piece = vec![byte; PIECE.min(bytes as usize)];
            for first in (0..bytes).step_by(PIECE) {
                let length = (bytes - first).min(PIECE as u64);
                self.device.write(buffer.all().part(first, length), &piece[..length as usize])?;
            }
        }
        Ok(buffer)
    }

    fn map(&mut self, tensors: &[Bytes]) -> Result<Vec<Range>, DeviceError> {
        self.device.map(tensors)
    }

    fn release(&mut self, buffer: Buffer) {
        self.device.release(buffer);
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Self::Executable, DeviceError> {
        let mut plan = plan.clone();
        if self.watch.least_tiles {
            with_least_tiles(&mut plan);
        }
        self.seen.lock().expect("no panic").extend(plan.dispatches.iter().map(|dispatch| dispatch.kernel.name));
        let whole = |executable| Part { before: Vec::new(), executable, after: Vec::new() };
        if !self.watch.confined {
            return Ok(vec![whole(self.device.prepare(&plan)?)]);
        }
        let parts: Result<Vec<_>, _> = plan.dispatches.into_iter().map(|dispatch| self.confine(dispatch)).collect();
        let mut parts = parts?;
        // So that who waits for the last submission waits for the copies before it.
        parts.push(whole(self.device.prepare(&Plan::default())?));
        Ok(parts)
    }

    fn write(&mut self, to: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(to, bytes)
    }

    fn copy(&mut self, ranges: &[(Range, Range)]) -> Result<(), DeviceError> {
        self.device.copy(ranges)
    }

    fn clear(&mut self, ranges: &[Range]) -> Result<(), DeviceError> {
        self.device.clear(ranges)
    }

    fn submit(&mut self, parts: &Self::Executable) -> Result<Ticket, DeviceError> {
        let mut last = Ticket(0);
        for Part { before, executable, after } in parts {
            self.device.copy(before)?;
            last = self.device.submit(executable)?;
            self.device.copy(after)?;
        }
        Ok(last)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        self.device.wait(ticket)
    }

    fn read(&mut self, from: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(from, bytes)
    }
}
