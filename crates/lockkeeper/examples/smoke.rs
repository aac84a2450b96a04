use lockkeeper::*;
use std::sync::Arc;
use std::time::Instant;
fn main() {
    for rt in ["ct", "mt"] {
        let r = if rt == "ct" { tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap() } else { tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap() };
        r.block_on(async {
            let n = 1_000_000u32;
            let m = Arc::new(tokio::sync::Mutex::new(0u64));
            let t = Instant::now();
            for _ in 0..n { *m.lock().await += 1; }
            let tk = t.elapsed() / n;
            let locks = Locks::memory();
            let l = locks.mutex("x");
            let t = Instant::now();
            for _ in 0..n { drop(l.lock().await.unwrap()); }
            let d = t.elapsed() / n;
            let t = Instant::now();
            for _ in 0..n { l.lock().await.unwrap().release().await.unwrap(); }
            let rl = t.elapsed() / n;
            println!("{rt} uncontended tokio {tk:?} memory drop {d:?} release {rl:?}");
            let per = 5000u32;
            let t = Instant::now();
            let mut hs = vec![];
            for _ in 0..64 { let m = m.clone(); hs.push(tokio::spawn(async move { for _ in 0..per { *m.lock().await += 1; tokio::task::yield_now().await } })); }
            for h in hs { h.await.unwrap(); }
            let tk = t.elapsed() / (64 * per);
            let t = Instant::now();
            let mut hs = vec![];
            for _ in 0..64 { let l = locks.mutex("x"); hs.push(tokio::spawn(async move { for _ in 0..per { drop(l.lock().await.unwrap()); tokio::task::yield_now().await } })); }
            for h in hs { h.await.unwrap(); }
            let d = t.elapsed() / (64 * per);
            println!("{rt} contended tokio {tk:?} memory {d:?}");
            let dir = std::env::temp_dir().join("lk-smoke");
            let locks = Locks::connect(&format!("file:{}", dir.display())).await.unwrap();
            let l = locks.mutex("x");
            let n = 20000;
            let t = Instant::now();
            for _ in 0..n { l.lock().await.unwrap().release().await.unwrap(); }
            println!("{rt} file {:?}/pair", t.elapsed() / n);
            let t = Instant::now();
            let mut hs = vec![];
            for i in 0..64 { let l = locks.mutex(format!("x{i}")); hs.push(tokio::spawn(async move { for _ in 0..300 { l.lock().await.unwrap().release().await.unwrap(); } })); }
            for h in hs { h.await.unwrap(); }
            println!("{rt} file 64 names {:?}/pair", t.elapsed() / (64*300));
        });
    }
}
