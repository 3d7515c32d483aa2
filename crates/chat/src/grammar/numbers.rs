//! What a schema says of numbers, as its compiler can follow it: each change makes it narrower, by what nobody writes, or says the
//! same.

use serde_json::{Map, Value};

/// The largest bound that the compiler takes: all that is within a 64-bit whole number as a float.
const LARGEST: f64 = 9_223_372_036_854_774_784.0;
/// The bound from which on the compiler takes one only with another.
const LARGE: f64 = 1e18;
/// How close a number may come to a small bound that is not allowed itself, where the compiler would let the bound through.
const CLOSEST: f64 = 1e-9;
/// A step is found this many floats away at most.
const NEIGHBOURS: usize = 32;

/// A bound on one side, and the other.
struct Side {
    inclusive: &'static str,
    exclusive: &'static str,
    /// 1 if numbers are above it, -1 if they are below.
    sign: f64,
}

const LOWER: Side = Side { inclusive: "minimum", exclusive: "exclusiveMinimum", sign: 1.0 };
const UPPER: Side = Side { inclusive: "maximum", exclusive: "exclusiveMaximum", sign: -1.0 };

/// Makes the bounds such as the compiler takes.
///
/// # Errors
/// Why one is no such and has been left out.
pub(super) fn plain_bounds(map: &mut Map<String, Value>) -> Result<(), String> {
    let mut beyond = Ok(());
    for (side, other) in [(&LOWER, &UPPER), (&UPPER, &LOWER)] {
        for name in [side.inclusive, side.exclusive] {
            let Some(bound) = number(map, name) else { continue };
            if bound * side.sign < -LARGEST {
                map.insert(name.into(), (-LARGEST * side.sign).into());
            } else if bound * side.sign > LARGEST {
                map.shift_remove(name);
                beyond = Err(format!("{name} is supported up to {LARGEST}, not for {bound}"));
            }
        }
        let is_large = |bound: f64| bound * side.sign >= LARGE;
        if side.of(map).is_some_and(is_large) && other.of(map).is_none() {
            map.insert(other.inclusive.into(), (LARGEST * side.sign).into());
        }
    }
    for (side, other) in [(&LOWER, &UPPER), (&UPPER, &LOWER)] {
        let Some(bound) = number(map, side.exclusive) else { continue };
        let next = if side.sign > 0.0 { bound.next_up() } else { bound.next_down() };
        let inner = |one: f64, another: f64| if (another - one) * side.sign > 0.0 { another } else { one };
        let space = other.of(map).map_or(f64::INFINITY, |end| (end - bound) * side.sign);
        let nearest = if bound.fract() == 0.0 && 0.0 < space && space < 1.0 {
            inner(next, bound + CLOSEST.min(space / 2.0) * side.sign)
        } else if bound + side.sign == bound {
            // To the compiler the next whole number is the bound itself.
            next
        } else {
            continue;
        };
        let nearest = number(map, side.inclusive).into_iter().fold(nearest, inner);
        map.shift_remove(side.exclusive);
        map.insert(side.inclusive.into(), nearest.into());
    }
    beyond
}

impl Side {
    /// The bound that counts.
    fn of(&self, map: &Map<String, Value>) -> Option<f64> {
        let each = [self.inclusive, self.exclusive].into_iter().filter_map(|name| number(map, name));
        each.reduce(|one, other| if (other - one) * self.sign > 0.0 { other } else { one })
    }
}

fn number(map: &Map<String, Value>, name: &str) -> Option<f64> {
    map.get(name).and_then(Value::as_f64)
}

/// A `multipleOf` as the compiler reads it: it multiplies by ten until nothing is left behind the point, which for most steps is
/// exact, or is for a float beside the one that is meant.
///
/// # Errors
/// Why there is none.
pub(super) fn plain_step(step: f64) -> Result<f64, String> {
    let step = step.abs();
    let meant = decimal(step);
    // The compiler's remainders are 32-bit numbers.
    let fits = |(digits, places): &(u64, u32)| {
        let place = 10u64.checked_pow(*places).and_then(|place| place.checked_mul(9));
        place.and_then(|place| digits.checked_mul(10)?.checked_add(place)).is_some_and(|most| most <= u32::MAX.into())
    };
    let near = |next: fn(f64) -> f64| std::iter::successors(Some(step), move |step| Some(next(*step))).take(NEIGHBOURS);
    let found = meant.filter(fits).and_then(|meant| {
        near(f64::next_up).chain(near(f64::next_down)).find(|float| as_read(*float) == (meant.0 as f64, meant.1))
    });
    found.ok_or_else(|| format!("a multipleOf of {step} has too many digits, or is too small"))
}

/// The digits of a number, and how many of them are behind the point.
fn decimal(number: f64) -> Option<(u64, u32)> {
    let text = number.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    Some((format!("{whole}{fraction}").parse().ok()?, fraction.len().try_into().ok()?))
}

/// As the compiler does.
fn as_read(mut number: f64) -> (f64, u32) {
    let mut places = 0;
    while number.fract() != 0.0 {
        number *= 10.0;
        places += 1;
    }
    (number, places)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{as_read, decimal, plain_bounds, plain_step};

    fn bounded(mut schema: Value) -> Result<Value, String> {
        plain_bounds(schema.as_object_mut().expect("an object")).map(|()| schema)
    }

    #[test]
    fn bounds_that_are_too_large_say_as_little_as_the_compiler_can() {
        let most = super::LARGEST;
        for (schema, plain) in [
            (json!({"minimum": -3.4e38, "maximum": 3.4e38}), json!({"minimum": -most, "maximum": most})),
            (
                json!({"minimum": i64::MIN, "exclusiveMaximum": u64::MAX}),
                json!({"minimum": -most, "maximum": most.next_down()}),
            ),
            (
                json!({"minimum": 0, "maximum": 9_007_199_254_740_991_i64}),
                json!({"minimum": 0, "maximum": 9_007_199_254_740_991_i64}),
            ),
            (json!({"minimum": 2e18}), json!({"minimum": 2e18, "maximum": most})),
            (json!({"maximum": -1e18, "minLength": 1}), json!({"maximum": -1e18, "minLength": 1, "minimum": -most})),
        ] {
            assert_eq!(bounded(schema.clone()), Ok(plain), "{schema}");
        }
        for schema in [json!({"minimum": 1e30}), json!({"exclusiveMaximum": -1e19})] {
            bounded(schema.clone()).expect_err(&schema.to_string());
        }
    }

    #[test]
    fn a_bound_that_is_not_allowed_is_kept_away_from() {
        for (schema, plain) in [
            (json!({"exclusiveMinimum": 0, "maximum": 0.5}), json!({"maximum": 0.5, "minimum": 1e-9})),
            (json!({"exclusiveMinimum": 0, "maximum": 1e-12}), json!({"maximum": 1e-12, "minimum": 5e-13})),
            (
                json!({"minimum": 0.25, "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}),
                json!({"minimum": 0.25, "exclusiveMaximum": 0.5}),
            ),
            (json!({"minimum": -1.5, "exclusiveMaximum": -1}), json!({"minimum": -1.5, "maximum": -1.000_000_001})),
            (json!({"exclusiveMinimum": 0, "maximum": 1}), json!({"exclusiveMinimum": 0, "maximum": 1})),
            (json!({"exclusiveMinimum": 1e18, "maximum": 2e18}), json!({"maximum": 2e18, "minimum": 1e18 + 128.0})),
            (
                json!({"minimum": 2e18, "exclusiveMinimum": 1e18, "maximum": 3e18}),
                json!({"minimum": 2e18, "maximum": 3e18}),
            ),
            (json!({"exclusiveMinimum": 0.5, "maximum": 0.75}), json!({"exclusiveMinimum": 0.5, "maximum": 0.75})),
        ] {
            assert_eq!(bounded(schema.clone()), Ok(plain), "{schema}");
        }
    }

    #[test]
    fn steps_are_read_as_they_are_written() {
        for step in [0.0, 0.01, 0.05, 0.07, 0.14, 0.29, 0.47, 1.66, 2.5, 10.0] {
            let (digits, places) = decimal(step).expect("digits");
            assert_eq!(plain_step(step).map(as_read), Ok((digits as f64, places)), "{step}");
        }
        for step in [1e-8, 1e-5, 1e8, 0.333, 12345.678] {
            plain_step(step).unwrap_or_else(|error| panic!("{error}"));
        }
        for step in [0.57, 1e-9, 1e-12, 0.1 + 0.2, 1e9, 1e300, 1.0 / 3.0] {
            plain_step(step).expect_err(&step.to_string());
        }
    }
}
