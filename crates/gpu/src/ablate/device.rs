//! A device that rewrites plans.

use std::cell::{Cell, RefCell};

use lily_checkpoint::Bytes;

use super::Ablation;
use super::rewrite::{Rewriter, Scratch, Sizes};
use super::routing::Sort;
use crate::device::{Buffer, Constant, Device, DeviceError, Limits, Range, Ticket, Tiles};
use crate::plan::Plan;

/// A device whose plans lack the idea that [`leave_out`](Self::leave_out) names; without one they are the model's own, always
/// of SIMD-group tiles.
pub struct Ablated<D: Device> {
    inner: D,
    without: Cell<Option<Ablation>>,
    sizes: Option<Sizes>,
    scratch: Scratch,
}

/// A plan, made ready for each ablation that it was run with.
pub struct Prepared<E> {
    plan: Plan,
    made: RefCell<Vec<(Option<Ablation>, Pieces<E>)>>,
}

type Pieces<E> = Vec<Piece<E>>;

/// A part of a plan, and what the CPU does when it has run.
pub(super) struct Piece<E> {
    executable: E,
    sort: Option<Sort>,
}

impl<D: Device> Ablated<D> {
    /// Around a device with nothing on it yet.
    #[must_use]
    pub const fn new(inner: D) -> Self {
        Self { inner, without: Cell::new(None), sizes: None, scratch: Scratch::new() }
    }

    /// The device it is around.
    #[must_use]
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// From the next submission on.
    pub fn leave_out(&self, idea: Option<Ablation>) {
        self.without.set(idea);
    }

    fn pieces(&mut self, plan: &Plan) -> Result<Pieces<D::Executable>, DeviceError> {
        let Self { inner, scratch, .. } = self;
        let (Some(ablation), Some(sizes)) = (self.without.get(), self.sizes) else {
            return Ok(vec![Piece { executable: inner.prepare(plan)?, sort: None }]);
        };
        let mut rewriter = Rewriter::new(sizes, |what, bytes| scratch.take(inner, what, bytes));
        let parts = rewriter.rewrite(ablation, plan)?;
        parts.into_iter().map(|(plan, sort)| Ok(Piece { executable: inner.prepare(&plan)?, sort })).collect()
    }

    fn run(&mut self, pieces: &[Piece<D::Executable>]) -> Result<Ticket, DeviceError> {
        let mut last = Ticket(0);
        for Piece { executable, sort } in pieces {
            last = self.inner.submit(executable)?;
            if let Some(sort) = sort {
                self.inner.wait(last)?;
                sort.run(&mut self.inner)?;
            }
        }
        Ok(last)
    }
}

impl<D: Device> Device for Ablated<D> {
    type Executable = Prepared<D::Executable>;

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn tiles(&self) -> Tiles {
        Tiles::Simdgroup
    }

    fn fingerprint(&self) -> String {
        let without = self.without.get().map_or_else(String::new, |idea| format!(", without {idea:?}"));
        self.inner.fingerprint() + &without
    }

    fn specialise(&mut self, constants: &[Constant]) -> Result<(), DeviceError> {
        self.sizes = Some(Sizes::of(constants));
        self.inner.specialise(constants)
    }

    fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, DeviceError> {
        self.inner.allocate(bytes, what)
    }

    fn map(&mut self, tensors: &[Bytes]) -> Result<Vec<Range>, DeviceError> {
        self.inner.map(tensors)
    }

    fn release(&mut self, buffer: Buffer) {
        self.inner.release(buffer);
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Self::Executable, DeviceError> {
        let made = vec![(self.without.get(), self.pieces(plan)?)];
        Ok(Prepared { plan: plan.clone(), made: RefCell::new(made) })
    }

    fn write(&mut self, to: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(to, bytes)
    }

    fn copy(&mut self, ranges: &[(Range, Range)]) -> Result<(), DeviceError> {
        self.inner.copy(ranges)
    }

    fn clear(&mut self, ranges: &[Range]) -> Result<(), DeviceError> {
        self.inner.clear(ranges)
    }

    fn submit(&mut self, executable: &Self::Executable) -> Result<Ticket, DeviceError> {
        let without = self.without.get();
        let mut made = executable.made.borrow_mut();
        let index = match made.iter().position(|(of, _)| *of == without) {
            Some(index) => index,
            None => {
                made.push((without, self.pieces(&executable.plan)?));
                made.len() - 1
            }
        };
        self.run(&made[index].1)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        self.inner.wait(ticket)
    }

    fn read(&mut self, from: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(from, bytes)
    }
}
