//! The engine over a scripted backend: deterministic, without a model, and every call is on record.

mod cancel;
mod failures;
mod load;
mod sampling;
mod scheduling;
mod scripted;
mod shutdown;
