//! Sizes of the dialect's types.

/// Bytes of a value and what its address is a multiple of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub size: usize,
    pub align: usize,
}

impl Layout {
    /// The layout of an array.
    pub(crate) fn times(self, count: usize) -> Self {
        Self { size: self.size * count, align: self.align }
    }
}

const SCALARS: &[(&str, usize)] = &[
    ("bool", 1),
    ("char", 1),
    ("uchar", 1),
    ("int8_t", 1),
    ("uint8_t", 1),
    ("short", 2),
    ("ushort", 2),
    ("int16_t", 2),
    ("uint16_t", 2),
    ("half", 2),
    ("bfloat", 2),
    ("int", 4),
    ("uint", 4),
    ("int32_t", 4),
    ("uint32_t", 4),
    ("float", 4),
    ("atomic_uint", 4),
    ("atomic_int", 4),
    ("long", 8),
    ("ulong", 8),
    ("int64_t", 8),
    ("uint64_t", 8),
    ("size_t", 8),
];

/// The layout of a scalar or a vector, packed or not; none for other types.
pub(crate) fn scalar_or_vector(type_name: &str) -> Option<Layout> {
    if let Some((_, size)) = SCALARS.iter().find(|(name, _)| *name == type_name) {
        return Some(Layout { size: *size, align: *size });
    }
    let (base, width) = vector(type_name)?;
    let (packed, scalar) = match base.strip_prefix("packed_") {
        Some(scalar) => (true, scalar),
        None => (false, base),
    };
    let size = SCALARS.iter().find(|(name, _)| *name == scalar && !name.starts_with("atomic"))?.1;
    let padded = size * if width == 3 { 4 } else { width };
    Some(if packed { Layout { size: size * width, align: size } } else { Layout { size: padded, align: padded } })
}

/// The scalar and the width of a vector's name: `float4`, `vec<float, 4>`.
pub(crate) fn vector(type_name: &str) -> Option<(&str, usize)> {
    if let Some(arguments) = type_name.strip_prefix("vec<").and_then(|rest| rest.strip_suffix('>')) {
        let (scalar, width) = arguments.split_once(',')?;
        return Some((scalar.trim(), width.trim().parse().ok().filter(|width| (2..=4).contains(width))?));
    }
    let width = type_name.chars().last()?.to_digit(10).filter(|width| (2..=4).contains(width))?;
    Some((&type_name[..type_name.len() - 1], width as usize))
}

/// Whether the dialect has a scalar or vector type of this name.
pub(crate) fn is_builtin_type(name: &str) -> bool {
    name == "void" || scalar_or_vector(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_metal_specification() {
        for (name, size, align) in [
            ("uint", 4, 4),
            ("half3", 8, 8),
            ("bfloat4", 8, 8),
            ("float4", 16, 16),
            ("packed_float3", 12, 4),
            ("packed_uint4", 16, 4),
            ("vec<half, 4>", 8, 8),
            ("atomic_uint", 4, 4),
            ("ulong2", 16, 16),
        ] {
            assert_eq!(scalar_or_vector(name), Some(Layout { size, align }), "{name}");
        }
        for name in ["float5", "T4", "double", "atomic_uint2", "Sequence", "u2"] {
            assert_eq!(scalar_or_vector(name), None, "{name}");
        }
    }
}
