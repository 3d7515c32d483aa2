//! Penalties and biases as the adjustments of a draw, kept up to date a token at a time.

use std::collections::HashMap;

use lily_backend::{Adjustment, Penalty};

use crate::request::Penalties;

/// The adjustments of one sequence. A prompt of 100K tokens is walked once, when the request is made; after that a token
/// changes one entry.
#[derive(Debug)]
pub(crate) struct Adjustments {
    penalties: Penalties,
    entries: Vec<Adjustment>,
    /// What the entry of the same index is made from.
    causes: Vec<Cause>,
    places: HashMap<u32, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cause {
    bias: f32,
    /// Times the token was generated.
    count: u32,
}

impl Adjustments {
    /// Before anything is generated: the bias, and the repetition penalty of the prompt.
    pub(crate) fn new(prompt: &[u32], penalties: Penalties, logit_bias: &[(u32, f32)]) -> Self {
        let mut adjustments = Self { penalties, entries: Vec::new(), causes: Vec::new(), places: HashMap::new() };
        for &(token, bias) in logit_bias {
            let place = adjustments.place(token);
            adjustments.causes[place].bias += bias;
        }
        if penalties.repetition != 1.0 {
            for &token in prompt {
                let place = adjustments.place(token);
                adjustments.entries[place].repetition = penalties.repetition;
            }
        }
        for (entry, &Cause { bias, .. }) in adjustments.entries.iter_mut().zip(&adjustments.causes) {
            (entry.add, entry.add_once_drawn) = (bias, added(penalties, bias, 1));
        }
        adjustments
    }

    /// Takes note of a generated token: OpenAI's `count·frequency + [count > 0]·presence`, and the repetition penalty.
    pub(crate) fn record(&mut self, token: u32) {
        if self.penalties == Penalties::default() {
            return;
        }
        let place = self.place(token);
        let penalties = self.penalties;
        let Cause { bias, count } = &mut self.causes[place];
        *count += 1;
        let [add, add_once_drawn] = [*count, *count + 1].map(|count| added(penalties, *bias, count));
        self.entries[place] = Adjustment { token, repetition: penalties.repetition, add, add_once_drawn };
    }

    /// What becomes of a token without an entry that [`record`](Self::record) is told of.
    pub(crate) fn penalty(&self) -> Option<Penalty> {
        let penalties = self.penalties;
        let penalty = Penalty { repetition: penalties.repetition, add: added(penalties, 0.0, 1) };
        (penalties != Penalties::default()).then_some(penalty)
    }

    pub(crate) fn as_slice(&self) -> &[Adjustment] {
        &self.entries
    }

    fn place(&mut self, token: u32) -> usize {
        *self.places.entry(token).or_insert_with(|| {
            self.entries.push(Adjustment { token, repetition: 1.0, add: 0.0, add_once_drawn: 0.0 });
            self.causes.push(Cause::default());
            self.entries.len() - 1
        })
    }
}

/// What is added to the logit of a token that was generated `count` times: from the count each time, so that rounding does
/// not pile up.
fn added(Penalties { presence, frequency, .. }: Penalties, bias: f32, count: u32) -> f32 {
    bias - presence - frequency * count as f32
}

#[cfg(test)]
mod tests {
    use lily_backend::{Adjustment, Draw};

    use super::Adjustments;
    use crate::request::Penalties;

    fn of(adjustments: &Adjustments, token: u32) -> Option<(f32, f32)> {
        let mut found = adjustments.as_slice().iter().filter(|entry| entry.token == token);
        let entry: Option<&Adjustment> = found.next();
        assert!(found.next().is_none(), "token {token} has two entries");
        entry.map(|entry| (entry.repetition, entry.add))
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let penalties = Penalties { presence: 0.5, frequency: 0.25, repetition: 1.0 };
        let mut adjustments = Adjustments::new(&[1, 1, 2], penalties, &[(3, 4.0)]);
        assert_eq!(of(&adjustments, 1), None, "the prompt is not penalised");
        for token in [1, 3, 1, 1] {
            adjustments.record(token);
        }
        assert_eq!(of(&adjustments, 1), Some((1.0, -0.5 - 0.75)));
        assert_eq!(of(&adjustments, 3), Some((1.0, 4.0 - 0.5 - 0.25)));
        assert_eq!(of(&adjustments, 2), None);
    }

    #[test]
    fn repetition_covers_prompt_and_reply() {
        let penalties = Penalties { repetition: 1.5, ..Penalties::default() };
        let mut adjustments = Adjustments::new(&[1, 1, 2], penalties, &[(2, -1.0)]);
        adjustments.record(7);
        adjustments.record(1);
        assert_eq!(of(&adjustments, 1), Some((1.5, 0.0)));
        assert_eq!(of(&adjustments, 2), Some((1.5, -1.0)));
        assert_eq!(of(&adjustments, 7), Some((1.5, 0.0)));
        assert_eq!(adjustments.as_slice().len(), 3);
    }

    #[test]
    fn biases_of_one_token_add_up_and_nothing_else_is_kept() {
        let mut adjustments = Adjustments::new(&[5; 100], Penalties::default(), &[(2, -1.0), (2, 3.0)]);
        adjustments.record(9);
        assert_eq!(adjustments.as_slice(), [Adjustment { token: 2, repetition: 1.0, add: 2.0, add_once_drawn: 2.0 }]);
        assert_eq!(adjustments.penalty(), None);
    }

    /// What a draw tells of the next is what that is, to the bit.
    #[test]
    fn the_next_adjustments_can_be_foreseen() {
        let all = [
            Penalties::default(),
            Penalties { presence: 1.5, ..Penalties::default() },
            Penalties { presence: 0.1, frequency: 0.3, repetition: 1.1 },
        ];
        for penalties in all {
            let mut adjustments = Adjustments::new(&[1, 2], penalties, &[(3, 0.7), (2, -0.2)]);
            for token in [5, 3, 5, 5, 1, 2, 3] {
                let draw =
                    Draw { adjustments: adjustments.as_slice(), penalty: adjustments.penalty(), ..Draw::greedy(10) };
                let bits = |all: &[Adjustment]| -> Vec<_> {
                    all.iter().map(|one| (one.token, one.repetition.to_bits(), one.add.to_bits())).collect()
                };
                let foreseen = bits(&draw.adjustments_once_drawn(token));
                adjustments.record(token);
                assert_eq!(bits(adjustments.as_slice()), foreseen, "{penalties:?}");
            }
        }
    }
}
