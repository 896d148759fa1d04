//! Formats times and sizes with three digits.

/// Formats a time in nanoseconds, such as `12.3 ns`, `1.05 µs` or `250 ms`.
#[must_use]
pub fn time(nanoseconds: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    // A time that rounds up to the next unit is written in that unit.
    let (scale, unit) =
        units.into_iter().find(|(scale, _)| nanoseconds >= scale * 0.9995).unwrap_or((1.0, "ns"));
    format!("{} {unit}", three_digits(nanoseconds / scale))
}

/// Formats a number of bytes, such as `256 B`, `1.50 KiB` or `480 MiB`.
#[must_use]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a unit is not 0, and a number of three digits may be rounded"
)]
pub fn bytes(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(scale, _)| bytes >= *scale) {
        Some((scale, unit)) if bytes.is_multiple_of(scale) => format!("{} {unit}", bytes / scale),
        Some((scale, unit)) => format!("{} {unit}", three_digits(bytes as f64 / scale as f64)),
        None => format!("{bytes} B"),
    }
}

/// Formats a number with three digits, such as `1.23`, `12.3` or `123`. Numbers from 1000 keep all digits
/// before the decimal point.
#[must_use]
pub fn three_digits(value: f64) -> String {
    match value {
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, time};

    #[test]
    fn times() {
        for (nanoseconds, text) in [
            (0.0, "0.00 ns"),
            (12.34, "12.3 ns"),
            (999.4, "999 ns"),
            (999.9, "1.00 µs"),
            (99_960.0, "100 µs"),
            (1.234e6, "1.23 ms"),
            (61.2e9, "61.2 s"),
        ] {
            assert_eq!(time(nanoseconds), text);
        }
    }

    #[test]
    fn sizes() {
        for (size, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (480 << 20, "480 MiB"), (3 << 29, "1.50 GiB")]
        {
            assert_eq!(bytes(size), text);
        }
    }
}
