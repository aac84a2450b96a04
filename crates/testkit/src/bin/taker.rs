//! Another process that takes locks: `taker URL`, then commands on standard input; see
//! `testkit::taker`.

fn main() {
    let url = std::env::args().nth(1).expect("usage: taker URL");
    testkit::taker::child::run(&url);
}
