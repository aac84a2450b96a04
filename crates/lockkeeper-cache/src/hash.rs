//! The hash that all processes share.

use siphasher::sip::SipHasher13;

/// Part of what is stored. Do *not* change it: every shared filter would lose its keys, and every
/// group would move them.
const SEED: [u8; 16] = *b"lockkeeper cache";

/// SipHash-1-3 with a fixed seed: the same on every machine and in every version.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    SipHasher13::new_with_key(&SEED).hash(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VECTORS: [(&[u8], u64); 3] = [
        (b"", 0xCE73_FA09_292E_07D2),
        (b"a", 0x7D9A_C9D1_E8A1_84BE),
        (b"user:42", 0x494D_498F_F9A6_B84E),
    ];

    /// Worked out by another program. Do *not* change it.
    #[test]
    fn pinned() {
        for (bytes, expected) in VECTORS {
            assert_eq!(hash(bytes), expected, "{bytes:?}");
        }
    }
}
