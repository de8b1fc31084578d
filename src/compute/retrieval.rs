//! Place recognition arithmetic: whitening, assignment, binary residuals, scoring (spec 7).
