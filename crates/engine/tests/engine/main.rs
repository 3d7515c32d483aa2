//! The engine over a scripted backend: deterministic, without a model, and every call is on record.

mod cancel;
mod constraint;
mod disk;
mod failures;
mod interleaving;
mod load;
mod prefix;
mod sampling;
mod scheduling;
mod scripted;
mod shutdown;
mod slices;
