//! Trajectory evaluation: association, ATE and RPE with the definitions of `evo`.
