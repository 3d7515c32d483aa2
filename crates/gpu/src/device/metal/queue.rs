//! Command buffers: what is being encoded, what runs, and how it ended.

use std::collections::VecDeque;
use std::sync::Arc;

use objc2::rc::Retained;
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2_foundation::{NSArray, NSError, NSString};
use objc2_metal::{
    MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandBufferDescriptor, MTLCommandBufferEncoderInfo,
    MTLCommandBufferEncoderInfoErrorKey, MTLCommandBufferError, MTLCommandBufferErrorOption, MTLCommandBufferStatus,
    MTLCommandEncoder, MTLCommandEncoderErrorState, MTLCommandQueue, MTLComputeCommandEncoder, MTLDevice,
    MTLDispatchType,
};
use tracing::debug;

use super::chip::Chip;
use crate::device::{DeviceError, Ticket};

/// Command buffers that may be under way; one more waits for the first of them.
const MOST_RUNNING: usize = 1024;

type CommandBuffer = Retained<ProtocolObject<dyn MTLCommandBuffer>>;

/// A committed command buffer.
struct Running {
    /// The submission it belongs to; the next one if it holds only copies.
    ticket: Ticket,
    buffer: CommandBuffer,
    /// What it runs, for messages.
    what: Arc<str>,
}

/// A failure and the last submission that it spoilt: all that were under way when it was noticed.
struct Failure {
    until: Ticket,
    /// Whether the process has lost the GPU for good.
    lasting: bool,
    error: DeviceError,
}

/// The one queue of a device.
pub(super) struct Queue {
    name: String,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    /// Takes copies until something is submitted.
    open: Option<CommandBuffer>,
    running: VecDeque<Running>,
    last: Ticket,
    failure: Option<Failure>,
}

impl Queue {
    pub(super) fn new(chip: &Chip) -> Result<Self, DeviceError> {
        let queue = chip.device.newCommandQueueWithMaxCommandBufferCount(MOST_RUNNING).ok_or_else(|| {
            DeviceError::Failed { name: chip.name.clone(), problem: "it gives no command queue".into() }
        })?;
        queue.setLabel(Some(&NSString::from_str("lily")));
        Ok(Self {
            name: chip.name.clone(),
            queue,
            open: None,
            running: VecDeque::new(),
            last: Ticket(0),
            failure: None,
        })
    }

    /// The queue itself, for what keeps memory resident.
    pub(super) fn queue(&self) -> &Retained<ProtocolObject<dyn MTLCommandQueue>> {
        &self.queue
    }

    /// The number that the next submission gets.
    pub(super) fn next(&self) -> Ticket {
        Ticket(self.last.0 + 1)
    }

    /// Whether everything committed is complete and nothing waits to be committed.
    pub(super) fn is_idle(&mut self) -> bool {
        while self.running.front().is_some_and(|front| front.buffer.status() >= MTLCommandBufferStatus::Completed) {
            self.finish_first();
        }
        self.open.is_none() && self.running.is_empty()
    }

    /// The last submission that is known to be complete.
    pub(super) fn completed(&self) -> Ticket {
        self.running.front().map_or(self.last, |front| Ticket(front.ticket.0 - 1))
    }

    /// An error if nothing can be run any more.
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        match &self.failure {
            Some(Failure { lasting: true, error, .. }) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Encodes copies, after all that was encoded before: each call is a pass of its own, and Metal orders passes that
    /// touch the same buffers.
    pub(super) fn blit(
        &mut self,
        encode: impl FnOnce(&ProtocolObject<dyn MTLBlitCommandEncoder>),
    ) -> Result<(), DeviceError> {
        self.check()?;
        let buffer = self.take_open()?;
        let encoder = buffer.blitCommandEncoder().ok_or_else(|| self.refused("a blit encoder"))?;
        encode(&encoder);
        encoder.endEncoding();
        self.open = Some(buffer);
        Ok(())
    }

    /// Encodes and commits a command buffer of the next submission. `what` is for messages, `label` for debuggers.
    pub(super) fn compute(
        &mut self,
        what: &Arc<str>,
        label: &NSString,
        encode: impl FnOnce(&ProtocolObject<dyn MTLComputeCommandEncoder>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let buffer = self.take_open()?;
        buffer.setLabel(Some(label));
        let encoder = buffer
            .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
            .ok_or_else(|| self.refused("a compute encoder"))?;
        encoder.setLabel(Some(label));
        let encoded = encode(&encoder);
        encoder.endEncoding();
        // Even if the pass is not whole: copies that were encoded before it count.
        buffer.commit();
        self.running.push_back(Running { ticket: self.next(), buffer, what: what.clone() });
        encoded
    }

    /// Waits for everything committed, whatever comes of it; copies that wait for a submission are left out.
    pub(super) fn drain(&mut self) {
        self.open = None;
        for running in self.running.drain(..) {
            running.buffer.waitUntilCompleted();
        }
    }

    /// Ends a submission.
    pub(super) fn submitted(&mut self) -> Ticket {
        if let Some(buffer) = self.open.take() {
            buffer.commit();
            self.running.push_back(Running { ticket: self.next(), buffer, what: "copies".into() });
        }
        self.last = self.next();
        self.last
    }

    /// Waits until a submission and all before it are complete.
    pub(super) fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        while let Some(front) = self.running.front().filter(|front| front.ticket <= ticket) {
            front.buffer.waitUntilCompleted();
            self.finish_first();
        }
        match &self.failure {
            Some(failure) if failure.lasting || ticket <= failure.until => Err(failure.error.clone()),
            _ => Ok(()),
        }
    }

    fn take_open(&mut self) -> Result<CommandBuffer, DeviceError> {
        if let Some(buffer) = self.open.take() {
            return Ok(buffer);
        }
        let descriptor = MTLCommandBufferDescriptor::new();
        descriptor.setErrorOptions(MTLCommandBufferErrorOption::EncoderExecutionStatus);
        self.queue.commandBufferWithDescriptor(&descriptor).ok_or_else(|| self.refused("a command buffer"))
    }

    fn refused(&self, what: &str) -> DeviceError {
        DeviceError::Failed { name: self.name.clone(), problem: format!("Metal gives no {what}") }
    }

    /// Takes the first command buffer, which is complete, off the list.
    fn finish_first(&mut self) {
        let Some(Running { buffer, what, .. }) = self.running.pop_front() else { return };
        debug!("{:.3} ms: {what}", (buffer.GPUEndTime() - buffer.GPUStartTime()) * 1e3);
        if buffer.status() == MTLCommandBufferStatus::Completed || self.failure.as_ref().is_some_and(|f| f.lasting) {
            return;
        }
        let (problem, lasting) = match buffer.error() {
            Some(error) => explain(&error),
            None => ("its command buffer failed, Metal doesn't say why".into(), false),
        };
        // What follows in the queue ran on what this one should have left; the first failure tells more than theirs.
        let spoilt = self.running.back().map_or(self.last, |back| back.ticket.max(self.last));
        let error = DeviceError::Kernel { kernel: what.to_string(), problem };
        match &mut self.failure {
            Some(failure) if self.running.front().is_some_and(|front| front.ticket <= failure.until) => {
                failure.lasting |= lasting;
            }
            failure => *failure = Some(Failure { until: spoilt, lasting, error }),
        }
    }
}

/// What went wrong in a command buffer, and whether the process has lost the GPU.
fn explain(error: &NSError) -> (String, bool) {
    let code = MTLCommandBufferError(error.code().unsigned_abs());
    let advice = match code {
        MTLCommandBufferError::Timeout => {
            ": macOS stopped it because it ran too long (see \"watchdog\" in docs/metal.md)"
        }
        MTLCommandBufferError::PageFault => ": a kernel left its buffers, please report it with the kernels named here",
        MTLCommandBufferError::OutOfMemory => ": other programs hold the memory; free some or take a shorter context",
        MTLCommandBufferError::AccessRevoked => ": macOS has shut this process off the GPU; start it again",
        MTLCommandBufferError::DeviceRemoved | MTLCommandBufferError::NotPermitted => ": start it again",
        _ => "",
    };
    let lasting = matches!(
        code,
        MTLCommandBufferError::AccessRevoked
            | MTLCommandBufferError::DeviceRemoved
            | MTLCommandBufferError::NotPermitted
    );
    let text = error.localizedDescription().to_string();
    // The watchdog that guards the screen reports under no code of its own.
    let advice = if text.contains("Impacting Interactivity") {
        ": macOS stopped it in favour of the screen (see \"watchdog\" in docs/metal.md)"
    } else {
        advice
    };
    (format!("{text}{advice}{}", states(error)), lasting)
}

/// How the passes of a failed command buffer ended, as far as Metal tells.
fn states(error: &NSError) -> String {
    // SAFETY: a constant string of the framework.
    let key = unsafe { MTLCommandBufferEncoderInfoErrorKey };
    let Some(value) = error.userInfo().objectForKey(key) else { return String::new() };
    let Some(passes) = value.downcast_ref::<NSArray>() else { return String::new() };
    let mut text = String::new();
    for pass in passes {
        let pass: &AnyObject = &pass;
        // SAFETY: Metal documents the value of this key as an array of MTLCommandBufferEncoderInfo.
        let pass = unsafe { &*std::ptr::from_ref(pass).cast::<ProtocolObject<dyn MTLCommandBufferEncoderInfo>>() };
        let state = match pass.errorState() {
            MTLCommandEncoderErrorState::Completed => "completed",
            MTLCommandEncoderErrorState::Affected => "hit by a failure elsewhere",
            MTLCommandEncoderErrorState::Pending => "not started",
            MTLCommandEncoderErrorState::Faulted => "at fault",
            _ => continue,
        };
        text.push_str(&format!("; pass {:?} {state}", pass.label().to_string()));
    }
    text
}
