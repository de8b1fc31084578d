//! Allocation-free paths, and saving a large map. Without the test harness, because all
//! allocations of the process are counted, and the harness allocates to report a test that takes a minute.

#[cfg(feature = "bags")]
mod bags;
mod image;
mod saving;
mod slam;

use testkit::counting::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    let check = |name: &str, run: fn()| {
        println!("{name}");
        run();
    };
    check(
        "preprocessing does not allocate",
        image::preprocessing_does_not_allocate,
    );
    check(
        "reading depth does not allocate",
        image::reading_depth_does_not_allocate,
    );
    check(
        "tracking does not allocate",
        slam::tracking_does_not_allocate,
    );
    check(
        "a map is saved in memory that does not grow with it",
        saving::a_map_is_saved_in_memory_that_does_not_grow_with_it,
    );
    #[cfg(feature = "bags")]
    check(
        "a bag ten times as long takes no more memory",
        bags::a_bag_ten_times_as_long_takes_no_more_memory,
    );
}
