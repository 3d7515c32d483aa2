//! Calls that let others in between.

use crate::{BackendError, Output, Segment};

/// Runs a call in slices, so that a long one holds up nobody; see [`Backend::pausable`](crate::Backend::pausable).
pub trait Pausable<S> {
    /// As [`Backend::forward`](crate::Backend::forward), but comes back with `None` soon after `pause`, which is asked again and
    /// again, says so. The same segments once more make it go on. Until it is through, their states are neither what they
    /// were nor what they will be, and nothing may be done with them but this; calls about others may come in between. Each
    /// call gets somewhere, whatever `pause` says.
    ///
    /// # Errors
    /// As [`Backend::forward`](crate::Backend::forward); the call is over then. If it had been paused, its states must be dropped.
    fn advance(
        &mut self,
        segments: &mut [Segment<'_, S>],
        pause: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<Output>>, BackendError>;

    /// Gives up the call that is paused, if there is one. Its states must be dropped.
    fn abandon(&mut self);
}
