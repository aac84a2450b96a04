//! What is logged and counted of loads.

use std::future::pending;
use std::time::Duration;

use lockkeeper_cache::{Cache, Error, Loaded, Memory};
use tempfile::NamedTempFile;
use testkit::wait::soon;
use tokio::time::sleep;
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, info, info_span};

#[tokio::test]
async fn a_loader_speaks_in_the_span_of_the_read() {
    for (level, spans) in [
        (LevelFilter::INFO, "request{id=7}: "),
        (LevelFilter::DEBUG, "request{id=7}:load{key=cache:1}: "),
    ] {
        let log = NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(log.reopen().unwrap())
            .finish();
        // Of this thread alone; the runtime has no other.
        let _default = tracing::subscriber::set_default(subscriber);
        let loader = async |key: u32| {
            info!("loading");
            Ok::<_, Error>(Loaded::found(key))
        };
        let cache = Cache::builder(Memory::new()).namespace("cache").build(loader).unwrap();
        // Who comes first to a place that logs decides for all whether anybody listens, and the threads of other tests, which
        // load as well, do not. So that nobody comes first from now on it is done once, and then decided anew, here.
        cache.get(&0).await.unwrap();
        tracing::callsite::rebuild_interest_cache();
        let read = cache.get(&1).instrument(info_span!("request", id = 7));
        soon("a value", read).await.unwrap();
        let logged = std::fs::read_to_string(log.path()).unwrap();
        assert!(logged.contains(&format!("{spans}cache::traces: loading")), "{logged}");
    }
}

#[tokio::test]
async fn the_time_of_all_loads_is_summed_up_also_of_one_that_is_cut_off() {
    let loader = async |key: u32| {
        sleep(Duration::from_millis(2)).await;
        if key == 3 {
            pending::<()>().await;
        }
        Ok::<_, Error>(Loaded::found(key))
    };
    let builder = Cache::builder(Memory::new()).namespace("cache");
    let cache = builder.timeout(Duration::from_secs(1)).build(loader).unwrap();
    cache.get_many(&[1, 2]).await.unwrap();
    soon("both are filled", cache.idle()).await;
    cache.get(&1).await.unwrap();
    let two = cache.stats();
    assert_eq!((two.loads, two.hits), (2, 1));
    assert!(two.load_micros >= 4000, "{two:?}");
    let ended = cache.get(&3).await;
    assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
    soon("it is dropped", cache.idle()).await;
    let three = cache.stats();
    assert_eq!(three.loads, 3);
    assert!(three.load_micros > two.load_micros, "{three:?}");
}
