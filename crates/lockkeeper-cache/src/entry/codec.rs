//! Entries as bytes. Numbers are big-endian; places are fixed, because the scripts in Lua read them too.
//!
//! | entry | bytes |
//! | --- | --- |
//! | value | `V` 1, lease ticket 16, lease end 8, fill 16, version 8, made 8, soft 8, cost 4, schema 4, null 1, payload |
//! | gap | `L` 1, lease ticket 16, lease end 8, floor 8, died 8, then nothing or the last value |
//! | intents | `W` 1, floor 8, then for each writer ticket 16, end 8 |
//!
//! The second byte is the format. Do not change what a number means: raise the format.

use bytes::{Buf, Bytes};

use super::{Entry, Gap, Intents, Lease, Ticket, Value};

const FORMAT: u8 = 1;

pub(super) fn encode(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(96);
    match entry {
        Entry::Value(value) => write_value(&mut bytes, value),
        Entry::Gap(gap) => {
            bytes.extend([b'L', FORMAT]);
            write_lease(&mut bytes, gap.lease);
            bytes.extend(gap.floor.to_be_bytes());
            bytes.extend(gap.died.to_be_bytes());
            if let Some(last) = &gap.last {
                write_value(&mut bytes, last);
            }
        }
        Entry::Intents(intents) => {
            bytes.extend([b'W', FORMAT]);
            bytes.extend(intents.floor.to_be_bytes());
            intents.writers.iter().for_each(|writer| write_lease(&mut bytes, *writer));
        }
    }
    bytes
}

fn write_value(bytes: &mut Vec<u8>, value: &Value) {
    bytes.extend([b'V', FORMAT]);
    write_lease(bytes, value.lease);
    bytes.extend(value.fill.to_bytes());
    for number in [value.version, value.made, value.soft] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(value.cost.to_be_bytes());
    bytes.extend(value.schema.to_be_bytes());
    bytes.push(u8::from(value.payload.is_none()));
    bytes.extend(value.payload.as_deref().unwrap_or_default());
}

fn write_lease(bytes: &mut Vec<u8>, lease: Lease) {
    bytes.extend(lease.ticket.to_bytes());
    bytes.extend(lease.until.to_be_bytes());
}

pub(super) fn decode(bytes: Bytes) -> Option<Entry> {
    let mut rest = Rest(bytes);
    let [kind, FORMAT] = rest.take()? else { return None };
    match kind {
        b'V' => rest.value().map(Entry::Value),
        b'L' => {
            let (lease, floor, died) = (rest.lease()?, rest.number()?, rest.number()?);
            // What cannot be read any more was only wanted by those who take anything.
            let last = match decode(rest.0) {
                Some(Entry::Value(last)) => Some(last),
                _ => None,
            };
            Some(Entry::Gap(Gap { lease, floor, died, last }))
        }
        b'W' => {
            let floor = rest.number()?;
            let mut writers = Vec::new();
            while !rest.0.is_empty() {
                writers.push(rest.lease()?);
            }
            Some(Entry::Intents(Intents { floor, writers }))
        }
        _ => None,
    }
}

/// What has not been read yet.
struct Rest(Bytes);

impl Rest {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.0.first_chunk()?;
        self.0.advance(N);
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn lease(&mut self) -> Option<Lease> {
        Some(Lease { ticket: Ticket::from_bytes(self.take()?), until: self.number()? })
    }

    fn value(mut self) -> Option<Value> {
        let (lease, fill) = (self.lease()?, Ticket::from_bytes(self.take()?));
        let (version, made, soft) = (self.number()?, self.number()?, self.number()?);
        let [cost, schema] = [self.take()?, self.take()?].map(u32::from_be_bytes);
        let payload = match self.take()? {
            [0] => Some(self.0),
            [1] if self.0.is_empty() => None,
            _ => return None,
        };
        Some(Value { lease, fill, version, made, soft, cost, schema, payload })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn lease() -> impl Strategy<Value = Lease> {
        (any::<[u8; 16]>(), any::<u64>())
            .prop_map(|(ticket, until)| Lease { ticket: Ticket::from_bytes(ticket), until })
    }

    fn value() -> impl Strategy<Value = Value> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
        let payload = proptest::option::of(vec(any::<u8>(), 0..40));
        (lease(), lease(), numbers, payload).prop_map(|(lease, fill, numbers, payload)| {
            let (version, made, soft, cost, schema) = numbers;
            let payload = payload.map(Bytes::from);
            Value { lease, fill: fill.ticket, version, made, soft, cost, schema, payload }
        })
    }

    fn entry() -> impl Strategy<Value = Entry> {
        let gap = (lease(), any::<u64>(), any::<u64>(), proptest::option::of(value()));
        prop_oneof![
            value().prop_map(Entry::Value),
            gap.prop_map(|(lease, floor, died, last)| Entry::Gap(Gap { lease, floor, died, last })),
            (any::<u64>(), vec(lease(), 0..4))
                .prop_map(|(floor, writers)| Entry::Intents(Intents { floor, writers })),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entry in entry()) {
            prop_assert_eq!(decode(encode(&entry).into()), Some(entry));
        }

        #[test]
        fn nothing_makes_it_panic(bytes in vec(any::<u8>(), 0..120), kind in "[VLWx]") {
            let _ = decode(bytes.clone().into());
            let mut close = bytes;
            close.splice(0..0, [kind.as_bytes()[0], FORMAT]);
            // What is read is what would be written: no two ways to say one thing.
            if let Some(read @ (Entry::Value(_) | Entry::Intents(_))) = decode(close.clone().into()) {
                prop_assert_eq!(encode(&read), close);
            }
        }

        #[test]
        fn half_of_one_is_not_read_as_another(entry in entry(), cut in 0..42_usize) {
            let bytes = encode(&entry);
            let cut = Bytes::copy_from_slice(&bytes[..cut.min(bytes.len())]);
            prop_assume!(cut.len() < bytes.len());
            // A list of writers may end earlier.
            prop_assert!(matches!(decode(cut), None | Some(Entry::Intents(_))));
        }
    }

    /// Programs of two versions meet at one store. Do not change this.
    #[test]
    fn the_places_are_those_that_the_scripts_know() {
        let lease = Lease { ticket: Ticket::from_bytes([7; 16]), until: 0x0102 };
        let fill = Ticket::from_bytes([9; 16]);
        let payload = Some(Bytes::from_static(b"hi"));
        let value =
            Value { lease, fill, version: 3, made: 4, soft: 5, cost: 6, schema: 8, payload };
        let bytes = encode(&Entry::Value(value.clone()));
        assert_eq!(bytes.len(), 77);
        assert_eq!((&bytes[..2], &bytes[2..18]), (&b"V\x01"[..], &[7; 16][..]));
        assert_eq!((bytes[24], bytes[25], &bytes[26..42]), (1, 2, &[9; 16][..]));
        assert_eq!([bytes[49], bytes[57], bytes[65], bytes[69], bytes[73]], [3, 4, 5, 6, 8]);
        assert_eq!((bytes[74], &bytes[75..]), (0, &b"hi"[..]));
        let gap = Gap { lease, floor: 3, died: 4, last: Some(value) };
        let bytes = encode(&Entry::Gap(gap));
        assert_eq!((bytes[33], bytes[41], &bytes[42..44]), (3, 4, &b"V\x01"[..]));
        let bytes = encode(&Entry::Intents(Intents { floor: 3, writers: vec![lease] }));
        assert_eq!((bytes[9], &bytes[10..26], bytes.len()), (3, &[7; 16][..], 34));
    }
}
