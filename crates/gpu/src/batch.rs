//! The records of a step: which rows it has, whose they are, which of them give logits, what is drawn from those.

use std::mem;

use lily_backend::{Draw, Penalty, Want};

use crate::device::{Device, DeviceError, Range};
use crate::kernels::{Adjustment, Draw as DrawRecord, NONE, Row, Segment};
use crate::memory::{MAX_ADJUSTMENTS, Memory};
use crate::shapes::MAX_DECODE_ROWS;

/// Rows of a step in the making.
#[derive(Default)]
pub(crate) struct Batch {
    rows: Vec<Row>,
    segments: Vec<Segment>,
}

impl Batch {
    /// Rows so far.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Sequences so far.
    pub(crate) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Adds tokens of the sequence in `slot`; gives the number of their first row.
    pub(crate) fn add(&mut self, slot: u32, tokens: &[u32]) -> usize {
        let first = self.rows.len();
        let segment = self.segments.len() as u32;
        let offsets = 0..tokens.len() as u32;
        self.rows.extend(tokens.iter().zip(offsets).map(|(&token, offset)| Row { slot, offset, token, segment }));
        self.segments.push(Segment { slot, first_row: first as u32, rows: tokens.len() as u32, draw: NONE });
        first
    }

    /// The sequence added last draws from its last row in the step itself.
    pub(crate) fn drawing(&mut self, draw: usize) {
        if let Some(segment) = self.segments.last_mut() {
            segment.draw = draw as u32;
        }
    }

    /// Writes the records, padded to so many of each.
    pub(crate) fn write(
        mut self,
        device: &mut impl Device,
        memory: &Memory,
        rows: usize,
        segments: usize,
    ) -> Result<(), DeviceError> {
        self.rows.resize(rows, Row { slot: NONE, ..Row::default() });
        self.segments.resize(segments, Segment { slot: NONE, draw: NONE, ..Segment::default() });
        device.write(memory.records.rows.range, &bytes(&self.rows, Row::to_bytes))?;
        device.write(memory.records.segments.range, &bytes(&self.segments, Segment::to_bytes))
    }
}

/// The rows of a step whose logits are wanted, at most 8, and what is drawn from them.
#[derive(Default)]
pub(crate) struct Picks {
    picked: Vec<u32>,
    draws: Vec<DrawRecord>,
    adjustments: Vec<Adjustment>,
    /// Places and words of the masks.
    masks: Vec<(usize, Vec<u32>)>,
}

impl Picks {
    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.picked.len()
    }

    /// True if the device draws from any of them.
    pub(crate) fn any_draw(&self) -> bool {
        self.draws.iter().any(|draw| draw.slot != NONE)
    }

    /// Wants the logits of a row; gives their place.
    pub(crate) fn logits(&mut self, row: usize) -> usize {
        self.picked.push(row as u32);
        self.draws.push(DrawRecord { slot: NONE, ..DrawRecord::default() });
        self.picked.len() - 1
    }

    /// Wants a token from the logits of a row, for the sequence in `slot`; gives their place, and whether the device draws.
    /// `unseen`: the adjustments are those of the draw before, which will have given a token when this one is made. Without a
    /// penalty they stay as they are, and that token is nothing to the draw.
    pub(crate) fn draw(&mut self, row: usize, slot: u32, draw: &Draw<'_>, unseen: bool) -> (usize, bool) {
        let place = self.logits(row);
        if !on_device(draw) || draw.adjustments.len() > MAX_ADJUSTMENTS {
            return (place, false);
        }
        let first = self.adjustments.len();
        let change = |change: &lily_backend::Adjustment| Adjustment {
            token: change.token,
            repetition: change.repetition,
            add: change.add,
            add_once_drawn: change.add_once_drawn,
        };
        self.adjustments.extend(draw.adjustments.iter().map(change));
        self.adjustments[first..].sort_unstable_by_key(|change| change.token);
        self.masks.extend(draw.allowed.map(|allowed| (place, allowed.words().to_vec())));
        let penalty = draw.penalty.unwrap_or(Penalty { repetition: 1.0, add: 0.0 });
        self.draws[place] = DrawRecord {
            slot,
            vocabulary: draw.vocabulary.min(NONE as usize) as u32,
            temperature: draw.sampling.temperature.max(0.0),
            top_k: draw.sampling.top_k.min(NONE as usize) as u32,
            top_p: draw.sampling.top_p,
            min_p: draw.sampling.min_p,
            seed_low: draw.seed as u32,
            seed_high: (draw.seed >> 32) as u32,
            counter_high: (draw.counter >> 32) as u32,
            first_adjustment: first as u32,
            adjustments: draw.adjustments.len() as u32,
            masked: u32::from(draw.allowed.is_some()),
            unseen: u32::from(unseen && draw.penalty.is_some()),
            penalty_repetition: penalty.repetition,
            penalty_add: penalty.add,
        };
        (place, true)
    }

    /// Writes the records, padded to so many.
    pub(crate) fn write(mut self, device: &mut impl Device, memory: &Memory, count: usize) -> Result<(), DeviceError> {
        self.picked.resize(count, NONE);
        device.write(memory.records.picked.range, &bytes(&self.picked, |row| row.to_ne_bytes()))?;
        let words = memory.records.mask.len() / MAX_DECODE_ROWS as u64;
        for (place, mut mask) in mem::take(&mut self.masks) {
            mask.resize(words as usize, 0);
            let row = memory.records.mask.part(place as u64 * words, words);
            device.write(row.range, &bytes(&mask, |word| word.to_ne_bytes()))?;
        }
        self.rewrite(device, memory, count)
    }

    /// Writes the draws and their adjustments, padded to so many, where those of the same rows are already and no draw has
    /// a mask: at once, as a step may be waiting for it.
    pub(crate) fn rewrite(
        mut self,
        device: &mut impl Device,
        memory: &Memory,
        count: usize,
    ) -> Result<(), DeviceError> {
        self.draws.resize(count, DrawRecord { slot: NONE, ..DrawRecord::default() });
        let (range, first_adjustment) = memory.records.draws_and_adjustments();
        let mut written = bytes(&self.draws, DrawRecord::to_bytes);
        if !self.adjustments.is_empty() {
            written.resize(first_adjustment as usize, 0);
            written.extend(bytes(&self.adjustments, Adjustment::to_bytes));
        }
        device.write(range, &written)
    }
}

/// Whether the device can make a draw: it reports the log-probability of the drawn token and of no other.
pub(crate) fn on_device(draw: &Draw<'_>) -> bool {
    draw.top_logprobs.is_none_or(|count| count == 0)
}

/// Rows of a few-row plan for so many: a power of two up to 8.
pub(crate) fn padded(rows: usize) -> usize {
    rows.next_power_of_two().min(MAX_DECODE_ROWS)
}

/// Whether the end of a segment wants anything of the logits, and of how many of its rows.
pub(crate) fn wanted_rows(want: &Want<'_>, rows: usize, last: bool) -> usize {
    match want {
        Want::Nothing => 0,
        Want::Sample(_) => usize::from(last),
        Want::Logits => rows,
    }
}

fn bytes<T, const SIZE: usize>(records: &[T], to_bytes: impl Fn(&T) -> [u8; SIZE]) -> Vec<u8> {
    records.iter().flat_map(to_bytes).collect()
}

/// Where record `index` lies.
pub(crate) fn record<T>(all: crate::kernel::Slice<T>, index: u32) -> Range {
    all.part(u64::from(index), 1).range
}

#[cfg(test)]
mod tests {
    use lily_backend::{Adjustment, Draw};

    use super::Picks;
    use crate::memory::MAX_ADJUSTMENTS;
    use crate::shapes::MAX_DECODE_ROWS;

    /// Each draw of a step may have as many adjustments as a draw alone; one that has more is no hindrance to the others.
    #[test]
    fn adjustments_are_bounded_by_draw() {
        let most: Vec<Adjustment> = (0..=MAX_ADJUSTMENTS as u32)
            .map(|token| Adjustment { token, repetition: 1.0, add: -1.0, add_once_drawn: -2.0 })
            .collect();
        let mut picks = Picks::default();
        for row in 0..MAX_DECODE_ROWS {
            let count = MAX_ADJUSTMENTS + usize::from(row == 2);
            let draw = Draw { adjustments: &most[..count], ..Draw::greedy(usize::MAX) };
            assert_eq!(picks.draw(row, row as u32, &draw, false), (row, row != 2));
        }
        assert_eq!(picks.adjustments.len(), (MAX_DECODE_ROWS - 1) * MAX_ADJUSTMENTS);
    }
}
