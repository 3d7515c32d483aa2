//! Segments in parts: how many of a segment's tokens a step takes, and what is wanted of them.

use std::ops::Range;

use lily_backend::{Segment, Want};

use crate::batch::{Picks, wanted_rows};
use crate::shapes::{MAX_DECODE_ROWS, PAGE};
use crate::state::State;

/// Where a prompt may be cut. Its last tokens past a multiple of this, if a few-row step holds them, always take that way, and
/// all others the many-row way: so a sequence's bits depend on its tokens' positions and not on how they came. One that is gone
/// on with between multiples is cut at the next, so that its bits depend on where that was and on nothing else.
pub(crate) const GRAIN: usize = PAGE;

/// Some tokens of a segment, few enough for a step.
pub(crate) struct Part {
    pub(crate) segment: usize,
    pub(crate) tokens: Range<usize>,
}

/// Where the answer to a segment's wish is found.
pub(crate) struct Answer {
    pub(crate) segment: usize,
    /// Among the logits.
    pub(crate) place: usize,
    /// By the device.
    pub(crate) drawn: bool,
}

impl Part {
    pub(crate) fn is_last(&self, segment: &Segment<'_, State>) -> bool {
        self.tokens.end == segment.tokens.len()
    }

    /// Picks the rows of this part, whose first is row `first` of the step, that the segment wants something of.
    pub(crate) fn answers(&self, segment: &Segment<'_, State>, first: usize, picks: &mut Picks) -> Vec<Answer> {
        let rows = self.tokens.len();
        let count = wanted_rows(&segment.want, rows, self.is_last(segment));
        (rows - count..rows).map(|row| self.answer(segment, first, row, picks)).collect()
    }

    pub(crate) fn answer(&self, segment: &Segment<'_, State>, first: usize, row: usize, picks: &mut Picks) -> Answer {
        let (place, drawn) = match &segment.want {
            Want::Sample(draw) => picks.draw(first + row, segment.state.slot.index, draw, false),
            _ => (picks.logits(first + row), false),
        };
        Answer { segment: self.segment, place, drawn }
    }
}

/// Of `left` tokens for a sequence that holds `held`, those that the next step takes, which has room for `most`.
pub(crate) fn part_rows(held: usize, left: usize, most: usize) -> usize {
    let left = if held.is_multiple_of(GRAIN) { left } else { left.min(GRAIN - held % GRAIN) };
    let tail = (held + left) % GRAIN;
    match left {
        ..=MAX_DECODE_ROWS => left,
        _ if left > most => most,
        _ if tail <= MAX_DECODE_ROWS => left - tail,
        _ => left,
    }
}

/// Parts in groups of at most `most` rows, in their order.
pub(crate) fn pack(parts: Vec<Part>, most: usize) -> Vec<Vec<Part>> {
    let mut groups: Vec<Vec<Part>> = Vec::new();
    let mut room = 0;
    for part in parts {
        let rows = part.tokens.len();
        if rows > room || groups.is_empty() {
            groups.push(Vec::new());
            room = most;
        }
        room -= rows;
        if let Some(group) = groups.last_mut() {
            group.push(part);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::{GRAIN, part_rows};
    use crate::shapes::MAX_DECODE_ROWS;

    /// Which tokens of a prompt of `length` take the few-row way, the prompt coming in pieces of up to `piece`.
    fn few(length: usize, piece: usize, most: usize) -> Vec<usize> {
        let (mut held, mut few) = (0, Vec::new());
        while held < length {
            let end = (held + piece).min(length);
            while held < end {
                let rows = part_rows(held, end - held, most);
                assert!((1..=most).contains(&rows));
                few.extend((rows <= MAX_DECODE_ROWS).then_some(held..held + rows).into_iter().flatten());
                held += rows;
            }
        }
        few
    }

    /// Wherever a prompt is cut after whole grains, the same of its tokens take the same way: its last few.
    #[test]
    fn the_way_of_a_token_depends_on_its_position() {
        for length in 1..700 {
            let tail = length % GRAIN;
            let expected: Vec<usize> =
                if tail <= MAX_DECODE_ROWS { (length - tail..length).collect() } else { Vec::new() };
            for piece in [GRAIN, 3 * GRAIN, 1024] {
                for most in [GRAIN, 2 * GRAIN, 2048] {
                    assert_eq!(few(length, piece, most), expected, "{length} tokens by {piece}, {most} a step");
                }
            }
        }
    }

    /// Wherever a sequence is gone on with, what follows takes the same steps up to the next grain and the same ways behind it,
    /// however it is cut after whole grains.
    #[test]
    fn the_way_from_any_length_depends_on_that_length() {
        let rows = |held: usize, length: usize, piece: usize| {
            let (mut at, mut parts) = (held, Vec::new());
            while at < length {
                let end = ((at / GRAIN + piece) * GRAIN).min(length);
                while at < end {
                    let rows = part_rows(at, end - at, 2 * GRAIN);
                    assert!((1..=2 * GRAIN).contains(&rows), "{rows} of {} at {at}", end - at);
                    parts.push(at..at + rows);
                    at += rows;
                }
            }
            parts
        };
        for held in 0..2 * GRAIN {
            for length in held + 1..held + 200 {
                let few = |piece| {
                    let parts = rows(held, length, piece);
                    let first = parts[0].clone();
                    let few = parts.into_iter().filter(|part| part.len() <= MAX_DECODE_ROWS).flatten();
                    (first.len().min(GRAIN), few.collect::<Vec<_>>())
                };
                let whole = few(1000);
                assert!([1, 2, 3].iter().all(|&piece| few(piece) == whole), "{held} to {length}");
            }
        }
    }
}
