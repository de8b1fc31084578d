//! Where the buffers of an arena lie: aligned, one after the other, and as they were planned.

use super::CudaError;
use super::memory::ALIGNMENT;

/// Where the next buffer of an arena lies.
pub(super) struct Cursor {
    /// Of the arena, from the start of the memory.
    start: u64,
    /// Bytes carved so far.
    used: u64,
    /// Bytes of the arena.
    total: u64,
    /// Names and bytes of the buffers to come, if they were planned.
    planned: Option<std::vec::IntoIter<(&'static str, u64)>>,
}

impl Cursor {
    /// An arena whose buffers nobody planned.
    pub(super) fn free(total: u64) -> Self {
        Self {
            start: 0,
            used: 0,
            total,
            planned: None,
        }
    }

    /// A part of a planned memory.
    pub(super) fn planned(start: u64, total: u64, buffers: Vec<(&'static str, u64)>) -> Self {
        Self {
            start,
            used: 0,
            total,
            planned: Some(buffers.into_iter()),
        }
    }

    /// Bytes carved so far, and bytes in all.
    pub(super) fn used(&self) -> (u64, u64) {
        (self.used, self.total)
    }

    /// Takes `len` elements of `size` bytes; where they start in the memory.
    pub(super) fn carve(
        &mut self,
        name: &'static str,
        len: usize,
        size: usize,
    ) -> Result<u64, CudaError> {
        let bytes = (len as u64).checked_mul(size as u64);
        if let Some(planned) = &mut self.planned {
            let next = planned.next();
            if bytes.is_none() || next != bytes.map(|bytes| (name, bytes)) {
                return Err(CudaError::Unplanned {
                    name,
                    bytes: bytes.unwrap_or(u64::MAX),
                    planned: next,
                });
            }
        }
        let start = self.used.next_multiple_of(ALIGNMENT);
        match bytes.and_then(|bytes| start.checked_add(bytes)) {
            Some(end) if end <= self.total => {
                self.used = end;
                Ok(self.start + start)
            }
            _ => Err(CudaError::ArenaFull {
                name,
                bytes: bytes.unwrap_or(u64::MAX),
                left: self.total.saturating_sub(start),
                total: self.total,
            }),
        }
    }
}

/// Bytes of `len` elements at `offset`, if they end within `total`; else says so.
pub(super) fn check_span<T>(
    name: &'static str,
    offset: u64,
    len: usize,
    total: u64,
) -> Result<(), CudaError> {
    let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
    match bytes.and_then(|bytes| offset.checked_add(bytes)) {
        Some(end) if end <= total => Ok(()),
        _ => Err(CudaError::ArenaFull {
            name,
            bytes: bytes.unwrap_or(u64::MAX),
            left: total.saturating_sub(offset),
            total,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carving_aligns_and_stops_at_the_end() {
        let mut cursor = Cursor::free(1024);
        let mut take = |len, size| cursor.carve("test", len, size);
        assert_eq!(take(1, 4), Ok(0));
        assert_eq!(take(64, 4), Ok(256));
        assert_eq!(take(0, 4), Ok(512));
        assert_eq!(take(1, 1), Ok(512));
        let error = take(129, 2).unwrap_err();
        let expected = CudaError::ArenaFull {
            name: "test",
            left: 256,
            bytes: 258,
            total: 1024,
        };
        assert_eq!(error, expected);
        // What did not fit took nothing.
        assert_eq!(take(128, 2), Ok(768));
        assert_eq!(take(0, 1), Ok(1024));
        assert!(take(1, 1).is_err());
        assert!(take(usize::MAX, 8).is_err());
    }

    #[test]
    fn planned_buffers_are_carved_as_planned_or_not_at_all() {
        let planned = || Cursor::planned(4096, 512, vec![("a", 12), ("b", 8)]);
        let mut cursor = planned();
        assert_eq!(cursor.carve("a", 3, 4), Ok(4096));
        assert_eq!(cursor.carve("b", 1, 8), Ok(4096 + 256));
        let more = cursor.carve("c", 0, 1).unwrap_err();
        assert!(
            matches!(more, CudaError::Unplanned { planned: None, .. }),
            "{more}"
        );
        for (name, len) in [("a", 4), ("b", 3), ("a", usize::MAX)] {
            let error = planned().carve(name, len, 4).unwrap_err();
            let expected = Some(("a", 12));
            assert!(
                matches!(error, CudaError::Unplanned { planned, .. } if planned == expected),
                "{error}"
            );
        }
    }
}
