//! Keys that are invalidated together.

use std::any::Any;
use std::fmt::Display;
use std::sync::Arc;

use futures_util::future::join;

use crate::cache::{Cache, Inner};
use crate::error::{Error, Result};
use crate::store::{self, Cursor};

/// The tags of a key.
pub(crate) type Tags<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// From what a builder has.
pub(crate) fn of<K: 'static>(tags: Box<dyn Any + Send + Sync>) -> Result<Tags<K>> {
    let other = |_| Error::Config("the tags are those of another type of key".into());
    tags.downcast::<Tags<K>>().map(|tags| *tags).map_err(other)
}

impl<K, V> Cache<K, V>
where
    K: Clone + Display + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Invalidates every key that has this tag. How many there were.
    ///
    /// # How it works
    ///
    /// [Tags](crate::Builder::tags) are a function of the key, so they are known before its value is: a key is added to
    /// their sets at the store together with the request for its lease, and its load begins when both are done. So a tag
    /// also finds the loads that are under way, and they fill nothing. Where a key cannot be added, nothing is filled.
    /// Keys stay in the set until no value of theirs can be there any more.
    ///
    /// # What it promises
    ///
    /// As for [`invalidate`](Self::invalidate), for all keys with this tag.
    ///
    /// # When it breaks
    ///
    /// A store that loses a set and keeps the values, does not find them by their tag: a node of a cluster that forgets
    /// everything, a server that evicts keys, another master that takes over. They end with their time to live.
    /// A program with other tags for the same keys does not add them to these.
    ///
    /// # Cost
    ///
    /// A load: one script for each tag, in the same round trip as the request for the lease; about 100 bytes in each set.
    /// This: two round trips for 500 keys.
    ///
    /// # Errors
    ///
    /// As for [`invalidate`](Self::invalidate), for all its keys: when one of them fails, all that come after it are owed. When
    /// the set cannot be read nobody knows its keys, so it must be called again.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), lockkeeper_cache::Error> {
    /// # use lockkeeper_cache::{Cache, Error, Loaded, Memory};
    /// let prices = Cache::builder(Memory::new())
    ///     .namespace("price")
    ///     .tags(|article: &String| vec![article[..1].to_owned()])
    ///     .build(async |article: String| Ok::<_, Error>(Loaded::found(article.len())))?;
    /// for article in ["pen", "paper", "ink"] {
    ///     prices.get(&article.to_owned()).await?;
    /// }
    /// assert_eq!(prices.invalidate_tag("p").await?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn invalidate_tag(&self, tag: &str) -> Result<u64> {
        let (inner, tag) = (&self.inner, self.inner.tag_name(tag));
        let (mut from, mut count) = (Cursor::default(), 0);
        let (mut invalidated, mut announced) = (Ok(()), Ok(()));
        loop {
            let list = || inner.store.tagged(&tag, from.clone());
            let page = inner.insist("reading a tag", list).await?;
            // What has failed would take its time for each page. The others are to be known, and are made up for as well.
            let invalidate = async {
                match &invalidated {
                    Ok(()) => invalidated = inner.invalidate_at_store(&page.keys, 0).await,
                    Err(_) => inner.owe(&page.keys, 0),
                }
            };
            let announce = async {
                match &announced {
                    Ok(()) => announced = inner.announce_again(&page.keys).await,
                    Err(_) => inner.owe_filter(&page.keys),
                }
            };
            join(invalidate, announce).await;
            count += page.keys.len() as u64;
            let Some(next) = page.next else { return invalidated.and(announced).map(|()| count) };
            from = next;
        }
    }
}

impl<K, V> Inner<K, V>
where
    K: Clone + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Keys have a colon after the namespace.
    fn tag_name(&self, tag: &str) -> String {
        format!("{}#tag:{tag}", self.settings.namespace)
    }

    /// Adds a key to its tags, before it is loaded.
    pub(crate) async fn tag(self: &Arc<Self>, key: &K, name: &str) -> store::Result<()> {
        let Some(tags) = &self.tags else { return Ok(()) };
        let tags: Vec<String> = tags(key).iter().map(|tag| self.tag_name(tag)).collect();
        if tags.is_empty() {
            return Ok(());
        }
        let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
        let (lease, ttl) = (self.settings.lease, self.settings.ttl.max(self.settings.null_ttl));
        // One lease for the load, and one more because it begins a little later and elsewhere.
        let tagged = self.store.tag(name, &tags, ttl + lease * 2).await;
        tagged.inspect_err(|error| self.store_failed("tagging", error))
    }
}
