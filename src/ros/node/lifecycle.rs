//! The state machine of a managed node, as in rcl_lifecycle.

use crate::wire::messages::lifecycle::{State, Transition, TransitionDescription};

/// A primary state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Primary {
    /// Not configured.
    Unconfigured,
    /// Configured, but ignoring images.
    Inactive,
    /// Processing images.
    Active,
    /// Shut down.
    Finalized,
}

/// A transition that can be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Set up.
    Configure,
    /// Undo that.
    Cleanup,
    /// Start.
    Activate,
    /// Stop.
    Deactivate,
    /// End.
    Shutdown,
}

/// A transition from a state: ids of the transition and of the intermediate state, and the target
/// state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub action: Action,
    /// Initial state.
    pub from: Primary,
    /// Target state on success; otherwise the node returns to `from`.
    pub to: Primary,
    id: u8,
    via: u8,
}

const STATES: [(u8, &str); 11] = [
    (0, "unknown"),
    (1, "unconfigured"),
    (2, "inactive"),
    (3, "active"),
    (4, "finalized"),
    (10, "configuring"),
    (11, "cleaningup"),
    (12, "shuttingdown"),
    (13, "activating"),
    (14, "deactivating"),
    (15, "errorprocessing"),
];

const STEPS: [Step; 7] = {
    use Action::{Activate, Cleanup, Configure, Deactivate, Shutdown};
    use Primary::{Active, Finalized, Inactive, Unconfigured};
    [
        Step {
            action: Configure,
            from: Unconfigured,
            to: Inactive,
            id: 1,
            via: 10,
        },
        Step {
            action: Cleanup,
            from: Inactive,
            to: Unconfigured,
            id: 2,
            via: 11,
        },
        Step {
            action: Activate,
            from: Inactive,
            to: Active,
            id: 3,
            via: 13,
        },
        Step {
            action: Deactivate,
            from: Active,
            to: Inactive,
            id: 4,
            via: 14,
        },
        Step {
            action: Shutdown,
            from: Unconfigured,
            to: Finalized,
            id: 5,
            via: 12,
        },
        Step {
            action: Shutdown,
            from: Inactive,
            to: Finalized,
            id: 6,
            via: 12,
        },
        Step {
            action: Shutdown,
            from: Active,
            to: Finalized,
            id: 7,
            via: 12,
        },
    ]
};

fn state(id: u8) -> State {
    let found = STATES.iter().find(|(k, _)| *k == id);
    State {
        id,
        label: found.map_or("unknown", |(_, label)| label).into(),
    }
}

impl Primary {
    /// Converts to a message.
    pub fn message(self) -> State {
        state(match self {
            Self::Unconfigured => 1,
            Self::Inactive => 2,
            Self::Active => 3,
            Self::Finalized => 4,
        })
    }

    /// Whether the node is configured.
    pub fn configured(self) -> bool {
        matches!(self, Self::Inactive | Self::Active)
    }

    /// The step for `action` in this state.
    pub fn step(self, action: Action) -> Option<Step> {
        let fits = |s: &&Step| s.from == self && s.action == action;
        STEPS.iter().find(fits).copied()
    }

    /// The step requested by id, or by name if one is given (as in rclcpp).
    pub fn requested(self, transition: &Transition) -> Option<Step> {
        let fits = |s: &&Step| {
            s.from == self
                && match transition.label.as_str() {
                    "" => s.id == transition.id,
                    label => s.label() == label,
                }
        };
        STEPS.iter().find(fits).copied()
    }

    /// Transitions available in this state.
    pub fn available(self) -> Vec<TransitionDescription> {
        let here = STEPS.iter().filter(|s| s.from == self);
        here.map(Step::description).collect()
    }
}

/// All states.
pub fn states() -> Vec<State> {
    STATES.iter().map(|(id, _)| state(*id)).collect()
}

/// All transitions.
pub fn graph() -> Vec<TransitionDescription> {
    STEPS.iter().map(Step::description).collect()
}

impl Step {
    fn label(&self) -> &'static str {
        match self.action {
            Action::Configure => "configure",
            Action::Cleanup => "cleanup",
            Action::Activate => "activate",
            Action::Deactivate => "deactivate",
            Action::Shutdown => "shutdown",
        }
    }

    /// The whole transition, from a primary state to the transition state.
    fn description(&self) -> TransitionDescription {
        TransitionDescription {
            transition: Transition {
                id: self.id,
                label: self.label().into(),
            },
            start_state: self.from.message(),
            goal_state: state(self.via),
        }
    }

    /// The two events published on `~/transition_event`: into the intermediate state, and out of
    /// it.
    pub fn events(&self, success: bool) -> [TransitionDescription; 2] {
        let (offset, label, goal) = match success {
            true => (0, "transition_success", self.to),
            false => (1, "transition_failure", self.from),
        };
        let done = TransitionDescription {
            transition: Transition {
                // 10 and 11 after configure, 20 and 21 after cleanup, 50 and 51 after shutdown.
                id: 10 * self.id.min(5) + offset,
                label: label.into(),
            },
            start_state: state(self.via),
            goal_state: goal.message(),
        };
        [self.description(), done]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_id(id: u8) -> Transition {
        Transition {
            id,
            label: String::new(),
        }
    }

    #[test]
    fn a_manager_s_round_leads_where_it_should() {
        let mut at = Primary::Unconfigured;
        for (id, expected) in [
            (1, Primary::Inactive),
            (3, Primary::Active),
            (4, Primary::Inactive),
            (2, Primary::Unconfigured),
            (5, Primary::Finalized),
        ] {
            at = at.requested(&by_id(id)).unwrap().to;
            assert_eq!(at, expected);
        }
        assert!(Primary::Finalized.available().is_empty());
        assert!(Primary::Unconfigured.requested(&by_id(3)).is_none());
        let named = Transition {
            id: 0,
            label: "activate".into(),
        };
        assert_eq!(
            Primary::Inactive.requested(&named).unwrap().to,
            Primary::Active
        );
        assert_eq!(
            Primary::Active.requested(&by_id(7)).unwrap().to,
            Primary::Finalized
        );
    }

    #[test]
    fn ids_are_those_of_lifecycle_msgs() {
        let ids = |events: [TransitionDescription; 2]| {
            events.map(|e| (e.start_state.id, e.transition.id, e.goal_state.id))
        };
        let step = |at: Primary, id| at.requested(&by_id(id)).unwrap();
        assert_eq!(
            ids(step(Primary::Unconfigured, 1).events(true)),
            [(1, 1, 10), (10, 10, 2)]
        );
        assert_eq!(
            ids(step(Primary::Unconfigured, 1).events(false)),
            [(1, 1, 10), (10, 11, 1)]
        );
        assert_eq!(
            ids(step(Primary::Inactive, 3).events(true)),
            [(2, 3, 13), (13, 30, 3)]
        );
        assert_eq!(
            ids(step(Primary::Active, 4).events(true)),
            [(3, 4, 14), (14, 40, 2)]
        );
        assert_eq!(
            ids(step(Primary::Active, 7).events(true)),
            [(3, 7, 12), (12, 50, 4)]
        );
        assert_eq!(states().len(), 11);
        assert_eq!(graph().len(), 7);
    }
}
