//! What the lock protects in some experiments: a shelf from which pieces are sold, with the check of it.

use parking_lot::Mutex;

use crate::checker::Stock;
use crate::scene::{Actor, Scene};
use crate::timeline::Kind;

/// How many pieces there are at first.
const PIECES: u64 = 10;

/// A shelf of ten. Who sells a piece reads how many there are, and writes one less.
#[derive(Debug)]
pub(super) struct Shop {
    scene: Scene,
    stock: Stock,
    /// What the last write that landed has left at the resource, as far as its writers were told.
    last: Mutex<Option<String>>,
}

impl Shop {
    pub(super) fn new(scene: &Scene) -> Self {
        Self { scene: scene.clone(), stock: Stock::of(PIECES), last: Mutex::default() }
    }

    /// Reads how many there are.
    pub(super) fn look(&self, actor: &Actor) -> u64 {
        let left = self.stock.read();
        actor.did(Kind::Read, format!("reads {left} in stock"));
        left
    }

    /// A write has landed: one is sold, and so many are left. A piece that was sold before is a violation.
    pub(super) fn sold(&self, actor: &Actor, left: u64) {
        let before = self.stock.oversold();
        self.stock.sell(left);
        *self.last.lock() = Some(Self::note(left, actor));
        actor.did(Kind::Wrote, format!("sells one, writes {left}"));
        if self.stock.oversold() > before {
            let sold = self.stock.sold();
            let text = format!("{sold} are sold and {} missing: one twice", PIECES - left);
            self.scene.violation(actor, text);
        }
    }

    /// What is written to a resource that is more than this shelf: with the name, because two who sell the
    /// same piece write the same number.
    pub(super) fn note(left: u64, actor: &Actor) -> String {
        format!("{left} by {}", actor.name())
    }

    /// What the resource says in the end, read past the fence. A write that was refused and landed all the
    /// same is a violation, and so is one that was accepted and did not.
    pub(super) fn compare(&self, says: Option<&str>) {
        let last = self.last.lock();
        let [says, told] = [says, last.as_deref()].map(|text| text.unwrap_or("nothing"));
        let checker = self.scene.actor("checker");
        if says == told {
            checker.did(Kind::Read, format!("the resource says: {says}"));
        } else {
            let text =
                format!("the resource says \"{says}\", and its writers were told \"{told}\"");
            self.scene.violation(&checker, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_write_sells_a_piece_twice() {
        let scene = Scene::new();
        let (shop, one, two) = (Shop::new(&scene), scene.actor("one"), scene.actor("two"));
        let first = shop.look(&one);
        let second = shop.look(&two);
        shop.sold(&two, second - 1);
        assert_eq!(scene.violations(), 0);
        shop.sold(&one, first - 1);
        assert_eq!(scene.violations(), 1);
    }

    #[test]
    fn a_write_that_landed_though_it_was_refused_is_seen_at_the_resource() {
        let scene = Scene::new();
        let (shop, one, two) = (Shop::new(&scene), scene.actor("one"), scene.actor("two"));
        shop.compare(None);
        shop.sold(&two, 9);
        shop.compare(Some(&Shop::note(9, &two)));
        assert_eq!(scene.violations(), 0);
        shop.compare(Some(&Shop::note(9, &one)));
        shop.compare(None);
        assert_eq!(scene.violations(), 2);
    }
}
