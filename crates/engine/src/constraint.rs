//! What a reply must follow, as far as the engine sees it.

use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lily_backend::TokenSet;

/// Says which tokens may come next in one reply. Whoever submits a request brings it: the engine knows no grammar.
pub trait Constraint: Debug + Send {
    /// The tokens that may be drawn next, stop tokens among them; `None` if any may. Never the empty set.
    fn allowed(&self) -> Option<&TokenSet>;

    /// Takes note of a token that was drawn, and works out what may follow. Not called once the reply has ended.
    ///
    /// It runs on the engine's thread, where all sequences wait for it.
    ///
    /// # Errors
    /// Why the reply cannot go on; it ends with [`Event::Failed`](crate::Event::Failed).
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// The same from where it is now, for another reply.
    fn boxed(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

/// [`Constraint::accept`], whose panic is a failure of this one reply.
pub(crate) fn accept(constraint: &mut dyn Constraint, token: u32) -> Result<(), String> {
    caught("the reply's constraint", || constraint.accept(token))
}

/// Makes a panic of what a request brought a failure of its reply.
pub(crate) fn caught<T>(what: &str, call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|panic| Err(format!("{what} panicked: {}", panic_message(panic.as_ref()))))
}

/// What a panic says.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
