//! Keyframes of the map that the tracker uses.

use std::sync::{Arc, Weak};

/// The tracker's use of a keyframe of the map, which is not removed before this is dropped.
#[derive(Debug, Clone)]
pub struct Loan(#[expect(dead_code, reason = "held for its reference count")] Arc<u32>);

/// The mapper's record of loans. There are at most as many as replies that the tracker has not dropped: two.
#[derive(Debug, Default)]
pub struct Loans(Vec<Weak<u32>>);

impl Loans {
    /// Lends keyframe `id`.
    pub fn lend(&mut self, id: u32) -> Loan {
        self.0.retain(|loan| loan.strong_count() > 0);
        let loan = Arc::new(id);
        self.0.push(Arc::downgrade(&loan));
        Loan(loan)
    }

    /// Whether keyframe `id` is lent.
    pub fn contains(&self, id: u32) -> bool {
        let mut lent = self.0.iter().filter_map(Weak::upgrade);
        lent.any(|keyframe| *keyframe == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyframe_is_lent_until_the_last_loan_is_dropped() {
        let mut loans = Loans::default();
        let (first, other, again) = (loans.lend(3), loans.lend(8), loans.lend(3));
        assert!(loans.contains(3) && loans.contains(8) && !loans.contains(4));
        drop((first, other));
        assert!(loans.contains(3) && !loans.contains(8));
        drop(again);
        assert!(!loans.contains(3));
        for _ in 0..100 {
            let _ = loans.lend(5);
        }
        assert!(loans.0.len() <= 1);
    }
}
