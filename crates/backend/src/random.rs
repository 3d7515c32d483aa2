//! Random numbers that depend on nothing but a seed and a counter, so that a request repeats whatever else runs, and so
//! that a GPU thread can compute them without state: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", 2011).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The `counter`-th number in [0, 1) of the stream `seed`: 24 random bits, every value exact in f32.
#[must_use]
pub fn uniform(seed: u64, counter: u64) -> f32 {
    let word = philox([counter as u32, (counter >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32])[0];
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::{philox, uniform};

    /// Known answers of the Random123 distribution for philox4x32-10.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn stays_in_range_and_is_uniform() {
        let mut sum = 0.0;
        for counter in 0..100_000 {
            let value = uniform(7, counter);
            assert!((0.0..1.0).contains(&value));
            sum += f64::from(value);
        }
        assert!((sum / 100_000.0 - 0.5).abs() < 0.005, "mean {}", sum / 100_000.0);
    }
}
