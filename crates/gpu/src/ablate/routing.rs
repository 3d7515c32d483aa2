//! What `route_sort` does, on the CPU.

use std::iter::repeat_n;

use crate::device::{Device, DeviceError, Range};
use crate::kernels::{Block, CHOSEN, NONE, RANKS, SortParams};

/// Bytes that are stored by one write.
const PIECE: usize = 64 << 10;

/// Reads which experts the rows chose and writes what the experts' products begin with.
pub(super) struct Sort {
    pub(super) chosen: Range,
    pub(super) order: Range,
    pub(super) places: Range,
    pub(super) map: Range,
    pub(super) p: SortParams,
    pub(super) experts: u32,
}

impl Sort {
    /// What writes `chosen` has run.
    pub(super) fn run(&self, device: &mut impl Device) -> Result<(), DeviceError> {
        let mut bytes = vec![0; (self.p.rows * CHOSEN) as usize * 4];
        // A device may be able to read only a piece at a time.
        for (index, piece) in bytes.chunks_mut(PIECE).enumerate() {
            device.read(self.chosen.part((index * PIECE) as u64, piece.len() as u64), piece)?;
        }
        let chosen: Vec<u32> = bytes.as_chunks().0.iter().map(|expert| u32::from_ne_bytes(*expert)).collect();
        let Sorted { order, places, map } = sort(&chosen, self.p, self.experts);
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let map: Vec<u8> = map.iter().flat_map(Block::to_bytes).collect();
        for (to, bytes) in [(self.order, words(&order)), (self.places, words(&places)), (self.map, map)] {
            for (index, piece) in bytes.chunks(PIECE).enumerate() {
                device.write(to.part((index * PIECE) as u64, piece.len() as u64), piece)?;
            }
        }
        Ok(())
    }
}

struct Sorted {
    order: Vec<u32>,
    places: Vec<u32>,
    map: Vec<Block>,
}

/// Pairs by expert and then by row, the shared expert's last, in blocks of at most `tile`.
fn sort(chosen: &[u32], SortParams { rows, tile, blocks }: SortParams, experts: u32) -> Sorted {
    let mut of_expert = vec![Vec::new(); experts as usize + 1];
    for (pair, &expert) in (0..).zip(chosen) {
        of_expert[expert as usize].push(pair / CHOSEN * RANKS + pair % CHOSEN);
    }
    of_expert[experts as usize] = (0..rows).map(|row| row * RANKS + CHOSEN).collect();
    let mut sorted = Sorted {
        order: Vec::with_capacity((rows * RANKS) as usize),
        places: vec![0; (rows * RANKS) as usize],
        map: vec![],
    };
    for (expert, pairs) in (0..).zip(&of_expert) {
        for block in pairs.chunks(tile as usize) {
            let first = sorted.order.len() as u32;
            sorted.map.push(Block { expert, first, pairs: block.len() as u32 });
            for (place, &pair) in (first..).zip(block) {
                sorted.places[pair as usize] = place;
                sorted.order.push(pair);
            }
        }
    }
    let left = (blocks as usize).saturating_sub(sorted.map.len());
    sorted.map.extend(repeat_n(Block { expert: NONE, first: 0, pairs: 0 }, left));
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_by_expert_and_row() {
        // Rows 0 to 2 choose experts 0 to 7, 1 to 8, 2 to 9.
        let chosen: Vec<u32> = (0..3).flat_map(|row| row..row + CHOSEN).collect();
        let Sorted { order, places, map } = sort(&chosen, SortParams { rows: 3, tile: 2, blocks: 20 }, 32);
        assert_eq!(order[..6], [0, 1, 9, 2, 10, 18]);
        assert_eq!(order[24..], [8, 17, 26]);
        assert!(order.iter().enumerate().all(|(place, &pair)| places[pair as usize] as usize == place));
        let block = |expert, first, pairs| Block { expert, first, pairs };
        assert_eq!(map[..4], [block(0, 0, 1), block(1, 1, 2), block(2, 3, 2), block(2, 5, 1)]);
        let none = block(NONE, 0, 0);
        assert_eq!(map[15..], [block(9, 23, 1), block(32, 24, 2), block(32, 26, 1), none, none]);
    }
}
