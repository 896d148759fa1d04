/// The element types of attention that cases have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// ONNX `float`, IEEE 754 binary32.
    F32,
    /// ONNX `float16`, IEEE 754 binary16.
    F16,
    /// ONNX `bfloat16`.
    Bf16,
}

impl Float {
    /// All three types.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Returns the name inside ONNX's `tensor(…)`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Returns the lowest finite value. Exported masks contain it where a slot is hidden.
    #[must_use]
    pub fn lowest(self) -> f64 {
        -self.highest()
    }

    /// Returns the value of this type that is nearest to `value`, ties to even. A value beyond the highest by
    /// half a unit in the last place or more becomes infinite.
    #[must_use]
    pub fn round(self, value: f64) -> f64 {
        if value == 0.0 || !value.is_finite() {
            return value;
        }
        let unit = self.unit_in_the_last_place(value);
        let rounded = (value / unit).round_ties_even() * unit;
        if rounded.abs() > self.highest() { f64::INFINITY.copysign(value) } else { rounded }
    }

    /// Returns the bits of a value of this type, in little-endian byte order. A NaN becomes a quiet one.
    ///
    /// # Panics
    /// Panics if the value is not one of this type. [`round`](Self::round) returns such values.
    #[must_use]
    pub fn to_le_bytes(self, value: f64) -> Vec<u8> {
        assert!(value.is_nan() || self.round(value) == value, "{value} is not a {}", self.name());
        let fraction_bits = self.fraction_bits();
        let sign = u32::from(value.is_sign_negative());
        let exponent_bits = self.bits() - 1 - fraction_bits as u32;
        let highest = (1 << exponent_bits) - 1;
        let magnitude = if value.is_nan() {
            (highest << fraction_bits) | (1 << (fraction_bits - 1))
        } else if value.is_infinite() {
            highest << fraction_bits
        } else {
            // The exponent is 0 for subnormal numbers. For others, the leading 1 of the units adds 1 to it.
            let units = (value.abs() / self.unit_in_the_last_place(value)) as u32;
            let exponent = (value.abs().to_bits() >> 52) as i32 - 1023 - self.lowest_exponent();
            (exponent.max(0) as u32 * (1 << fraction_bits)) + units
        };
        let bits = (sign << (self.bits() - 1)) | magnitude;
        bits.to_le_bytes()[..self.bits() as usize / 8].to_vec()
    }

    fn bits(self) -> u32 {
        if self == Self::F32 { 32 } else { 16 }
    }

    /// Returns the distance between neighbouring values of this type around `value`. Near 0 it is the smallest
    /// subnormal number.
    #[must_use]
    pub fn unit_in_the_last_place(self, value: f64) -> f64 {
        let exponent = ((value.abs().to_bits() >> 52) as i32 - 1023).max(self.lowest_exponent());
        2f64.powi(exponent - self.fraction_bits())
    }

    fn highest(self) -> f64 {
        let highest_exponent = 1 - self.lowest_exponent();
        (2.0 - 2f64.powi(-self.fraction_bits())) * 2f64.powi(highest_exponent)
    }

    fn fraction_bits(self) -> i32 {
        match self {
            Self::F32 => 23,
            Self::F16 => 10,
            Self::Bf16 => 7,
        }
    }

    /// Returns the exponent of the smallest normal number.
    fn lowest_exponent(self) -> i32 {
        match self {
            Self::F32 | Self::Bf16 => -126,
            Self::F16 => -14,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Float;

    #[test]
    fn float32_is_the_language_s() {
        assert_eq!(Float::F32.lowest(), f64::from(f32::MIN));
        let values =
            [0.1, -1.0 / 3.0, 1e-40, 1e-46, 3.402_823_5e38, 3.402_824e38, -1e300, f64::INFINITY, 0.0];
        for value in values {
            assert_eq!(Float::F32.round(value).to_bits(), f64::from(value as f32).to_bits(), "{value}");
        }
        assert!(Float::F32.round(f64::NAN).is_nan());
    }

    #[test]
    fn bits_are_those_of_ieee_754() {
        let values = [1.0, -0.1, 1e-40, f64::from(f32::MAX), 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY];
        for value in values.map(|value| Float::F32.round(value)) {
            assert_eq!(Float::F32.to_le_bytes(value), (value as f32).to_le_bytes(), "{value}");
        }
        let halves =
            [(1.0, 0x3C00), (-2.5, 0xC100), (65504.0, 0x7BFF), (2f64.powi(-24), 1), (f64::NAN, 0x7E00)];
        for (value, bits) in halves {
            assert_eq!(Float::F16.to_le_bytes(value), u16::to_le_bytes(bits), "{value}");
        }
        assert_eq!(Float::Bf16.to_le_bytes(-1.5), u16::to_le_bytes(0xBFC0));
        assert_eq!(Float::Bf16.to_le_bytes(f64::NEG_INFINITY), u16::to_le_bytes(0xFF80));
    }

    #[test]
    fn halves_round_to_even() {
        assert_eq!(Float::F16.lowest(), -65504.0);
        assert_eq!(Float::F16.round(2049.0), 2048.0);
        assert_eq!(Float::F16.round(2051.0), 2052.0);
        assert_eq!(Float::F16.round(65519.9), 65504.0);
        assert_eq!(Float::F16.round(65520.0), f64::INFINITY);
        assert_eq!(Float::F16.round(2f64.powi(-25)), 0.0);
        assert_eq!(Float::F16.round(1.5 * 2f64.powi(-24)), 2f64.powi(-23));
        assert_eq!(Float::Bf16.lowest(), f64::from(f32::from_bits(0xFF7F_0000)));
        assert_eq!(Float::Bf16.round(257.0), 256.0);
        assert_eq!(Float::Bf16.round(259.0), 260.0);
        assert_eq!(Float::Bf16.unit_in_the_last_place(1.0), 2f64.powi(-7));
    }
}
