//! Allocation-free paths, and saving a large map. A program with a single test, because it counts all allocations of the process.

#[cfg(feature = "bags")]
mod bags;
mod image;
mod saving;
mod slam;

use testkit::counting::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn nothing_allocates_where_nothing_must() {
    image::preprocessing_does_not_allocate();
    image::reading_depth_does_not_allocate();
    slam::tracking_does_not_allocate();
    saving::a_map_is_saved_in_memory_that_does_not_grow_with_it();
    #[cfg(feature = "bags")]
    bags::a_bag_ten_times_as_long_takes_no_more_memory();
}
