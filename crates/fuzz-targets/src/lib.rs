//! What the fuzzers run. Each function takes any bytes at all and panics if what it looks at does not hold for them. Its name
//! is that of its folder in `fuzz/corpus`.
//!
//! `fuzz/` gives them the bytes that libFuzzer finds; a test of this crate gives them those that are kept in
//! `fuzz/corpus`, on every run and with any compiler.

mod conversation;
mod grammars;
mod reasoning;
mod request_bodies;
mod safetensors_header;
mod stream;
mod template_inputs;
mod tiny;
mod tool_calls;
mod values;

pub use grammars::grammars;
pub use reasoning::reasoning;
pub use request_bodies::request_bodies;
pub use safetensors_header::safetensors_header;
pub use template_inputs::template_inputs;
pub use tool_calls::tool_calls;
