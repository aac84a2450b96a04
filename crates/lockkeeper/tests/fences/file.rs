//! Files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use lockkeeper::fence::Error;
use lockkeeper::fence::file::FencedFile;
use testkit::random::Random;
use testkit::server;
use testkit::taker::Taker;
use testkit::wait::eventually;

use crate::late::overtaken;
use crate::{stale, token};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_that_writes_late_to_a_file_is_refused() {
    let (server, dir) = (server::redis(&[]).await, tempfile::tempdir().unwrap());
    let path = dir.path().join("state");
    let (mut late, guard, mut writer) =
        overtaken(&server, path.to_str().unwrap(), &["file", "file"]).await;
    assert_eq!(fs::read_to_string(&path).unwrap(), "late");
    writer.write("file", &guard, "new").await.unwrap();
    late.go_on();
    assert_eq!(late.ask("file").await, format!("stale {}", guard.token()));
    assert_eq!(fs::read_to_string(&path).unwrap(), "new", "the new holder's value is intact");
}

#[tokio::test]
async fn under_one_token_a_file_is_written_as_often_as_one_likes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let (shown, file) = (path.display().to_string(), FencedFile::new(&path).unwrap());
    assert_eq!(file.newest().await.unwrap(), None);
    for content in ["a", "a", "", "b"] {
        file.write(token(3), content).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    stale(file.write(token(2), "late").await, &shown, 2, 3);
    file.raise(token(9)).await.unwrap();
    stale(file.write(token(8), "late").await, &shown, 8, 9);
    assert_eq!(
        (fs::read_to_string(&path).unwrap().as_str(), file.newest().await.unwrap()),
        ("b", Some(token(9)))
    );
    fs::remove_file(&path).unwrap();
    stale(file.write(token(8), "late").await, &shown, 8, 9);
    assert!(!path.exists());
    file.write(token(u64::MAX), "last").await.unwrap();
    let mut left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["state", "state.fence"], "nothing is left behind");
}

#[tokio::test]
async fn what_is_around_a_file_is_respected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let file = FencedFile::new(&path).unwrap();
    fs::write(&path, "before").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    // Of somebody who was killed in the middle, and of somebody else.
    fs::write(dir.path().join("state.fence.new"), "half").unwrap();
    fs::write(dir.path().join("state.new"), "mine").unwrap();
    file.write(token(1), "after").await.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
    let link = FencedFile::new(dir.path().join("link")).unwrap();
    assert!(matches!(link.write(token(1), "x").await, Err(Error::Store { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "after");
    assert_eq!(fs::read_to_string(dir.path().join("state.new")).unwrap(), "mine");
    // Through a link the token would be that of another file.
    std::os::unix::fs::symlink(dir.path().join("state.fence"), dir.path().join("other.fence"))
        .unwrap();
    let other = FencedFile::new(dir.path().join("other")).unwrap();
    assert!(matches!(other.write(token(9), "x").await, Err(Error::Store { .. })));
    assert_eq!(file.newest().await.unwrap(), Some(token(1)));
    fs::write(dir.path().join("state.fence"), "nonsense").unwrap();
    let error = file.write(token(2), "x").await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    // The last two would be what others have beside them.
    for odd in ["/", "..", "", "state.fence", "dir/state.fence.new"] {
        assert!(matches!(FencedFile::new(odd), Err(Error::Invalid(_))), "{odd:?}");
    }
    let nowhere = FencedFile::new(dir.path().join("no/state")).unwrap();
    assert!(matches!(nowhere.write(token(2), "x").await, Err(Error::Store { .. })));
}

#[tokio::test]
async fn who_is_in_the_middle_of_a_write_is_waited_for_and_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let file = FencedFile::new(dir.path().join("state")).unwrap();
    file.write(token(1), "a").await.unwrap();
    let other = fs::File::open(dir.path().join("state.fence")).unwrap();
    other.lock().unwrap();
    let hasty = file.clone().patience(Duration::from_millis(20));
    let error = hasty.write(token(2), "b").await.unwrap_err();
    assert!(error.to_string().contains("somebody else"), "{error}");
    let waiting = tokio::spawn({
        let file = file.clone();
        async move { file.write(token(2), "b").await }
    });
    tokio::task::yield_now().await;
    drop(other);
    waiting.await.unwrap().unwrap();
}

/// Several processes at once, and a reader that must never see half of anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_storm_the_largest_token_wins_in_a_file() {
    let (server, dir) = (server::redis(&[]).await, tempfile::tempdir().unwrap());
    let path = dir.path().join("state");
    let told = format!("redis://{} {}", server.address(), path.display());
    let mut others = [Taker::spawn(&told).await, Taker::spawn(&told).await];
    let (mut random, file) = (Random::seeded(), FencedFile::new(&path).unwrap());
    // The others are in the hundreds of their tokens: they take the lock one after the other.
    for _ in 0..20 {
        let at = usize::try_from(random.below(2)).unwrap();
        others[at].send("storm");
        let mut largest = 0;
        for _ in 0..20 {
            let under = 1 + random.below(1000);
            match file.write(token(under), format!("{under} ").repeat(500)).await {
                Ok(()) => largest = under,
                Err(error) => assert!(error.stale().unwrap().newest.unwrap().get() > under),
            }
            let text = fs::read_to_string(&path).unwrap();
            let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().unwrap());
            let first = numbers.next().unwrap();
            assert!(first >= largest && numbers.all(|number| number == first), "{text}");
        }
        assert_eq!(others[at].answer().await, "ok done");
    }
    let newest = file.newest().await.unwrap().unwrap().to_string();
    assert!(fs::read_to_string(&path).unwrap().starts_with(&newest));
}

/// Writers are killed wherever they are: what is there is whole, and its token is not newer than the fence's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_is_killed_leaves_a_whole_file_under_its_fence() {
    let (server, dir) = (server::redis(&[]).await, tempfile::tempdir().unwrap());
    let path = dir.path().join("state");
    let told = format!("redis://{} {}", server.address(), path.display());
    let (mut random, file) = (Random::seeded(), FencedFile::new(&path).unwrap());
    file.write(token(1), "1 ").await.unwrap();
    let mut killed_inside = 0;
    for _ in 0..60 {
        let mut other = Taker::spawn(&told).await;
        let before = fs::read_to_string(&path).unwrap();
        other.send("storm without end");
        // By a look at the file, and not at its fence: that would wait until nobody is inside.
        let goes_on = async || fs::read_to_string(&path).unwrap() != before;
        eventually("it goes on", goes_on).await;
        for _ in 0..random.below(3000) {
            tokio::task::yield_now().await;
        }
        other.kill();
        killed_inside += usize::from(dir.path().join("state.fence.new").exists());
        let newest = file.newest().await.unwrap().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().unwrap());
        let first = numbers.next().unwrap();
        assert!(first <= newest.get() && numbers.all(|number| number == first), "{text}");
        let before = newest.get() - 1;
        stale(
            file.write(token(before), "late").await,
            &path.display().to_string(),
            before,
            newest.get(),
        );
        file.write(newest, format!("{newest} ")).await.unwrap();
    }
    eprintln!("{killed_inside} were killed in the middle of a content");
}
