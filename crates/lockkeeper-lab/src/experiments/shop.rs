//! What the lock protects in some experiments: a shelf from which pieces are sold, with the check of it.

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
}

impl Shop {
    pub(super) fn new(scene: &Scene) -> Self {
        Self { scene: scene.clone(), stock: Stock::of(PIECES) }
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
        actor.did(Kind::Wrote, format!("sells one, writes {left}"));
        if self.stock.oversold() > before {
            let sold = self.stock.sold();
            let text = format!("{sold} are sold and {} missing: one twice", PIECES - left);
            self.scene.violation(actor, text);
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
}
