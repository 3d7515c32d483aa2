//! Where the tensors of a checkpoint lie for the GPU: in the mapped file itself, or in copies.
//!
//! Metal takes memory in place only as whole pages, so a window is a run of pages around tensors that follow each other
//! in a file. The file's last page counts as a whole one: the system maps it whole and fills it up with zeros.

/// A tensor's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Address of the first byte.
    pub(super) address: usize,
    pub(super) bytes: usize,
    /// Whether it lies in a mapped file, whose pages hold nothing else.
    pub(super) mapped: bool,
}

/// A tensor's place: bytes from the start of a window or of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    InFile { window: usize, offset: usize },
    Copied { arena: usize, offset: usize },
}

/// Whole pages of mapped files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) address: usize,
    pub(super) bytes: usize,
}

/// What to wrap, what to allocate, and where each tensor is then.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) windows: Vec<Window>,
    /// Bytes of each buffer of copies.
    pub(super) arenas: Vec<usize>,
    /// In the order of the tensors.
    pub(super) places: Vec<Place>,
}

/// Kernels load 16 bytes at once; a tensor that the file has elsewhere is copied.
const IN_PLACE_ALIGNMENT: usize = 16;

/// Where a copy begins, as in any buffer of [`Device::allocate`](crate::device::Device::allocate).
const COPY_ALIGNMENT: usize = 256;

/// An arena is closed at this size, so that the system can page and wire it in parts.
const ARENA_BYTES: usize = 1 << 30;

/// Lays tensors out for a device with pages of `page` bytes and buffers of at most `largest` bytes.
/// `in_place` is false where the device refused to take mapped files.
///
/// A tensor larger than `largest` gets an arena of its own, which the device will refuse.
pub(super) fn layout(tensors: &[Span], page: usize, largest: usize, in_place: bool) -> Layout {
    let mut layout = Layout { places: vec![Place::Copied { arena: 0, offset: 0 }; tensors.len()], ..Layout::default() };
    let down = |address: usize| address / page * page;
    let suits = |span: &Span| {
        in_place
            && span.mapped
            && span.bytes > 0
            && span.address.is_multiple_of(IN_PLACE_ALIGNMENT)
            && (span.address + span.bytes).next_multiple_of(page) - down(span.address) <= largest
    };

    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&index| tensors[index].address);
    for &index in order.iter().filter(|&&index| suits(&tensors[index])) {
        let Span { address, bytes, .. } = tensors[index];
        let end = (address + bytes).next_multiple_of(page);
        // Only pages that hold a tensor are known to be mapped: a gap of a page ends the window.
        match layout.windows.last_mut() {
            Some(window)
                if down(address) <= window.address + window.bytes && end.saturating_sub(window.address) <= largest =>
            {
                window.bytes = window.bytes.max(end - window.address);
            }
            _ => layout.windows.push(Window { address: down(address), bytes: end - down(address) }),
        }
        let window = layout.windows.len() - 1;
        layout.places[index] = Place::InFile { window, offset: address - layout.windows[window].address };
    }

    for (index, span) in tensors.iter().enumerate().filter(|(_, span)| !suits(span)) {
        let size = span.bytes.max(1).next_multiple_of(COPY_ALIGNMENT);
        match layout.arenas.last_mut() {
            Some(used) if *used + size <= largest.min(ARENA_BYTES) => *used += size,
            _ => layout.arenas.push(size),
        }
        let arena = layout.arenas.len() - 1;
        layout.places[index] = Place::Copied { arena, offset: layout.arenas[arena] - size };
    }
    layout
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: usize = 16384;

    fn span(address: usize, bytes: usize) -> Span {
        Span { address, bytes, mapped: true }
    }

    #[test]
    fn a_file_is_one_window() {
        // Tensors back to back from byte 4,096 of a file at page 10 on.
        let start = 10 * PAGE + 4096;
        let tensors = [span(start, 1 << 20), span(start + (1 << 20), 48), span(start + (1 << 20) + 48, 100)];
        let layout = layout(&tensors, PAGE, 1 << 30, true);
        assert_eq!(layout.windows, [Window { address: 10 * PAGE, bytes: 65 * PAGE }]);
        assert!(layout.arenas.is_empty());
        let offsets = [4096, 4096 + (1 << 20), 4096 + (1 << 20) + 48];
        assert_eq!(layout.places, offsets.map(|offset| Place::InFile { window: 0, offset }));
    }

    #[test]
    fn what_suits_no_window_is_copied() {
        let tensors = [
            span(8, 1000),                                  // badly aligned
            Span { mapped: false, ..span(3 * PAGE, 1000) }, // in the program or on the heap
            span(5 * PAGE, 2 << 20),                        // larger than a buffer
            span(1000 * PAGE + 16, 32),
        ];
        let layout = layout(&tensors, PAGE, 1 << 20, true);
        assert_eq!(layout.windows, [Window { address: 1000 * PAGE, bytes: PAGE }]);
        assert_eq!(layout.arenas, [2048, 2 << 20]);
        let copied = |arena, offset| Place::Copied { arena, offset };
        assert_eq!(layout.places[..3], [copied(0, 0), copied(0, 1024), copied(1, 0)]);
        assert_eq!(layout.places[3], Place::InFile { window: 0, offset: 16 });
    }

    #[test]
    fn windows_end_at_gaps_and_at_the_largest_buffer() {
        let tensors = [span(0, PAGE), span(PAGE, 16), span(3 * PAGE, 16), span(4 * PAGE, 3 * PAGE)];
        let layout = layout(&tensors, PAGE, 3 * PAGE, true);
        let window = |first, pages| Window { address: first * PAGE, bytes: pages * PAGE };
        assert_eq!(layout.windows, [window(0, 2), window(3, 1), window(4, 3)]);
    }

    proptest! {
        #[test]
        fn every_tensor_is_whole_and_alone(
            sizes in proptest::collection::vec((0usize..200_000, 0usize..3, any::<bool>()), 1..40),
            in_place: bool,
        ) {
            let mut address = 7 * PAGE;
            let tensors: Vec<Span> = sizes.iter().map(|&(bytes, gap, mapped)| {
                address += gap * 8;
                let span = Span { address, bytes, mapped };
                address += bytes + gap * PAGE;
                span
            }).collect();
            let largest = 1 << 18;
            let layout = layout(&tensors, PAGE, largest, in_place);

            for window in &layout.windows {
                prop_assert!(in_place && window.address % PAGE == 0 && window.bytes % PAGE == 0);
                prop_assert!(window.bytes <= largest);
                // Each of its pages holds a byte of some mapped tensor.
                for page in (window.address..window.address + window.bytes).step_by(PAGE) {
                    prop_assert!(tensors.iter().any(|tensor| tensor.mapped && tensor.bytes > 0
                        && tensor.address < page + PAGE && page < tensor.address + tensor.bytes));
                }
            }
            let mut copies = Vec::new();
            for (tensor, place) in tensors.iter().zip(&layout.places) {
                match *place {
                    Place::InFile { window, offset } => {
                        let window = layout.windows[window];
                        prop_assert_eq!(window.address + offset, tensor.address);
                        prop_assert!(offset % 16 == 0 && offset + tensor.bytes <= window.bytes);
                    }
                    Place::Copied { arena, offset } => {
                        prop_assert!(offset % 256 == 0 && offset + tensor.bytes <= layout.arenas[arena]);
                        copies.push((arena, offset, offset + tensor.bytes));
                    }
                }
            }
            copies.sort_unstable();
            prop_assert!(copies.windows(2).all(|pair| pair[0].0 < pair[1].0 || pair[0].2 <= pair[1].1));
        }
    }
}
