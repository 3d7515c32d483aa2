#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lily_fuzz_targets::tool_calls(data));
