#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lily_fuzz_targets::template_inputs(data));
