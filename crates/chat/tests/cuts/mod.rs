//! Texts cut at random.

use proptest::prelude::*;

/// `text` cut at some of its characters.
pub(crate) fn cut<'t>(text: &'t str, places: &[prop::sample::Index]) -> Vec<&'t str> {
    let bounds: Vec<usize> = text.char_indices().map(|(index, _)| index).chain([text.len()]).collect();
    let mut ends: Vec<usize> = places.iter().map(|place| *place.get(&bounds)).chain([text.len()]).collect();
    ends.sort_unstable();
    let mut start = 0;
    ends.into_iter().map(|end| &text[std::mem::replace(&mut start, end)..end]).collect()
}

pub(crate) fn places() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..20)
}
