//! Queues that keep their newest items.

use heapless::Deque;

/// Adds an item at the back. A full queue drops its oldest item, at the front, for it.
pub(crate) fn push<T, const N: usize>(queue: &mut Deque<T, N>, item: T) {
    if queue.is_full() {
        queue.pop_front();
    }
    // A queue with N > 0 has room now.
    let _ = queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_item_of_a_full_queue_is_dropped() {
        let mut queue = Deque::<u8, 3>::new();
        for k in 0..5 {
            push(&mut queue, k);
        }
        assert!(queue.iter().eq(&[2, 3, 4]));
    }
}
