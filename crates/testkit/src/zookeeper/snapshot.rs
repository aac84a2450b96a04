//! Changes what a server has on disk: for states that would take weeks to reach.

use std::fs;
use std::path::PathBuf;

use crate::server::Server;

/// What a snapshot ends with: a checksum and `/`, the digest of the tree, and both again.
const SEAL: usize = 8 + 4 + 1;
const DIGEST: usize = 8 + 4 + 8;
/// In a node, between its data and the number of children that it ever had: its ACL, when and by
/// which step it was made and changed, and how often.
const BEFORE_CREATED: usize = 8 + 4 * 8 + 4;

/// Restarts a server as if this node, which must be there, had already had so many children: the next
/// one that is sequential gets this number.
///
/// # Panics
///
/// When the server does not keep its data as ZooKeeper 3.8 does.
pub async fn set_children_created(server: &mut Server, path: &str, created: i32) {
    // A server writes a snapshot when it starts: everything is in that.
    server.restart().await;
    server.kill();
    let folder = server.dir().join("data/version-2");
    let mut snapshots = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("log.") {
            fs::remove_file(file).unwrap();
        } else if let Some(zxid) = name.strip_prefix("snapshot.") {
            snapshots.push((u64::from_str_radix(zxid, 16).unwrap(), file));
        }
    }
    let (_, snapshot): &(u64, PathBuf) = snapshots.iter().max().expect("a snapshot");
    let mut bytes = fs::read(snapshot).unwrap();
    patch(&mut bytes, path, created);
    fs::write(snapshot, bytes).unwrap();
    server.start_again().await;
}

fn patch(bytes: &mut [u8], path: &str, created: i32) {
    let mut key = u32::try_from(path.len()).unwrap().to_be_bytes().to_vec();
    key.extend(path.as_bytes());
    let at = bytes.windows(key.len()).position(|window| window == key).expect("the node");
    let data = at + key.len();
    let length = i32::from_be_bytes(bytes[data..data + 4].try_into().unwrap());
    let at = data + 4 + usize::try_from(length).unwrap_or(0) + BEFORE_CREATED;
    bytes[at..at + 4].copy_from_slice(&created.to_be_bytes());
    for seal in [bytes.len() - SEAL - DIGEST - SEAL, bytes.len() - SEAL] {
        let sum = u64::from(adler32(&bytes[..seal]));
        bytes[seal..seal + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in bytes {
        low = (low + u32::from(*byte)) % 65521;
        high = (high + low) % 65521;
    }
    high << 16 | low
}

#[cfg(test)]
mod tests {
    use super::adler32;

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }
}
