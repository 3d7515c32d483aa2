//! Whether kernels that are written by hand in `kernels/cuda/` have the arguments that Rust gives them.

use crate::kernel::{Access, Kernel};

/// The text that NVRTC compiles.
pub(super) const SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.cu"));

/// The kernel's entry takes its buffers, in their order, by their names, `const` where they are read, then parameters if it has any.
pub(super) fn check(kernel: &Kernel) {
    let name = kernel.name;
    let (_, rest) = SOURCE.split_once(&format!(" lily_{name}(")).unwrap_or_else(|| panic!("no entry {name}"));
    let (list, _) = rest.split_once(')').expect("the end of a list");
    let entry: Vec<&str> = list.split(',').map(str::trim).collect();
    let buffers: Vec<String> = kernel
        .arguments
        .iter()
        .map(|argument| match argument.access {
            Access::Read => format!("const * {}", argument.name),
            Access::Write => format!("* {}", argument.name),
        })
        .collect();
    let parameters = usize::from(kernel.parameters_size > 0);
    assert_eq!(entry.len(), buffers.len() + parameters, "{name}: {entry:?}");
    for (entry, buffer) in entry.iter().zip(&buffers) {
        let (element, of) = entry.split_once('*').unwrap_or_else(|| panic!("{name}: {entry} is no buffer"));
        let constant = if element.starts_with("const ") { "const " } else { "" };
        assert_eq!(format!("{constant}*{of}"), *buffer, "{name}");
    }
    assert!(entry.iter().skip(buffers.len()).all(|last| !last.contains('*')), "{name}: {entry:?}");
}

/// What the kernel is launched with is a number that the text asserts.
pub(super) fn check_launch_bytes(kernel: &Kernel) {
    let bytes = kernel.launch_bytes.to_string();
    let asserted = SOURCE.split("static_assert(").skip(1).filter_map(|rest| rest.split_once(';'));
    let mut numbers = asserted.flat_map(|(assertion, _)| assertion.split(|letter: char| !letter.is_ascii_digit()));
    assert!(kernel.launch_bytes == 0 || numbers.any(|number| number == bytes), "{}: {bytes} bytes", kernel.name);
}
