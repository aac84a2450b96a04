//! Numbers and texts out of bytes.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::ZlibDecoder;

/// Bytes that are not what they should be: nothing after them can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the binary log makes no sense at {0}")]
pub(super) struct Malformed(pub(super) &'static str);

/// What is still to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed("its end"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number of up to eight bytes, the least first.
    pub(super) fn little(&mut self, count: usize) -> Result<u64, Malformed> {
        Ok(little(self.take(count)?))
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// The same as a count of something in memory.
    pub(super) fn count(&mut self, bytes: usize) -> Result<usize, Malformed> {
        size(self.little(bytes)?)
    }

    /// A number that says itself how long it is.
    pub(super) fn packed(&mut self) -> Result<u64, Malformed> {
        match self.byte()? {
            small @ ..=250 => Ok(u64::from(small)),
            252 => self.little(2),
            253 => self.little(3),
            254 => self.little(8),
            _ => Err(Malformed("a number")),
        }
    }

    /// As many bytes as a packed number before them says.
    pub(super) fn counted(&mut self) -> Result<&'a [u8], Malformed> {
        let count = size(self.packed()?)?;
        self.take(count)
    }
}

pub(super) fn size(number: u64) -> Result<usize, Malformed> {
    usize::try_from(number).map_err(|_| Malformed("a length"))
}

/// Up to eight bytes, the least first.
pub(super) fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Up to eight bytes, the greatest first.
pub(super) fn big(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Whether this bit is set, the least of the first byte being the first.
pub(super) fn bit(bytes: &[u8], at: usize) -> bool {
    bytes.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
}

/// What is no larger than this is decompressed: the largest event that a server sends.
const MAX: u64 = 1 << 30;

/// What MariaDB compresses: a byte with the way and how long the length is, the length, and the data.
pub(super) fn decompress(bytes: &[u8]) -> Result<Cow<'static, [u8]>, Malformed> {
    const BAD: Malformed = Malformed("what it compresses");
    let mut input = Bytes(bytes);
    let head = input.byte()?;
    if head & 0xf0 != 0x80 {
        return Err(BAD);
    }
    let length = big(input.take(usize::from(head & 7))?);
    if length > MAX {
        return Err(BAD);
    }
    let mut output = Vec::with_capacity(size(length)?);
    let read = ZlibDecoder::new(input.0).take(length + 1).read_to_end(&mut output);
    match read {
        Ok(count) if count as u64 == length => Ok(Cow::Owned(output)),
        _ => Err(BAD),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    #[test]
    fn numbers_say_how_long_they_are() {
        let mut bytes = Bytes(&[250, 252, 1, 2, 253, 1, 0, 1, 254, 1, 0, 0, 0, 0, 0, 0, 0x80, 251]);
        assert_eq!(bytes.packed(), Ok(250));
        assert_eq!(bytes.packed(), Ok(0x201));
        assert_eq!(bytes.packed(), Ok(0x10001));
        assert_eq!(bytes.packed(), Ok(0x8000_0000_0000_0001));
        assert!(bytes.packed().is_err() && bytes.packed().is_err());
    }

    #[test]
    fn what_does_not_decompress_to_its_length_is_malformed() {
        let mut zlib = ZlibEncoder::new(vec![0x81, 5], Compression::fast());
        zlib.write_all(b"hello").unwrap();
        let good = zlib.finish().unwrap();
        assert_eq!(&*decompress(&good).unwrap(), b"hello");
        for length in [4, 6] {
            let mut bad = good.clone();
            bad[1] = length;
            assert!(decompress(&bad).is_err(), "{length}");
        }
        assert!(decompress(&good[..6]).is_err());
        assert!(decompress(&[]).is_err() && decompress(&[0x91, 1, 2]).is_err());
    }
}
