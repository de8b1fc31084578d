//! Allocation-free paths. A program with a single test, because it counts all allocations of the process.

#[cfg(feature = "bags")]
mod bags;
mod image;
mod slam;

use testkit::counting::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn nothing_allocates_where_nothing_must() {
    image::preprocessing_does_not_allocate();
    image::reading_depth_does_not_allocate();
    slam::tracking_does_not_allocate();
    #[cfg(feature = "bags")]
    bags::a_bag_ten_times_as_long_takes_no_more_memory();
}
