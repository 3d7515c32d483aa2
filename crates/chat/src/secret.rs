//! Texts that nobody can know before.

/// 32 hexadecimal digits of the operating system's randomness: for ids that must not be guessed, and for marks in a text
/// that no message can hold.
///
/// # Panics
/// If the system has no randomness to give, which no system that runs this does.
#[must_use]
pub fn secret() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    format!("{:032x}", u128::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::secret;

    #[test]
    fn no_two_are_alike() {
        let (one, other) = (secret(), secret());
        assert_ne!(one, other);
        assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
