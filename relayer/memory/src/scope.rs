//! Access to items. One function decides, from an item's class and the caller's place, which the server
//! resolves to internal ids. A place that does not resolve sees nothing.

use crate::{
    ids::{PersonaId, ProjectId, SessionId},
    model::{Kind, Layer, MemoryScope},
};

/// The place that an item belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) enum Home {
    /// A session; the item's project is the session's current one.
    Session(SessionId),
    /// A project or the shared pool, for good.
    Pinned(Option<ProjectId>),
}

/// All properties of an item that decide its visibility, except its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct Class {
    pub(crate) home: Home,
    pub(crate) kind: u8,
    pub(crate) layer: u8,
    pub(crate) persona: PersonaId,
    pub(crate) intimate: bool,
}

impl Class {
    pub(crate) fn new(home: Home, kind: Kind, layer: Layer, persona: PersonaId, intimate: bool) -> Self {
        Self { home, kind: kind as u8, layer: layer as u8, persona, intimate }
    }
}

/// The properties of a session that matter for scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionScope {
    pub(crate) project: Option<ProjectId>,
    pub(crate) forked: bool,
}

/// The caller's place and rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The project, or the shared pool.
    pub(crate) project: Option<ProjectId>,
    pub(crate) persona: PersonaId,
    pub(crate) scope: MemoryScope,
    /// The caller's session and its ancestors, each with the last item number that is visible.
    pub(crate) lineage: Vec<(SessionId, u64)>,
}

impl View {
    /// The last item number of a class that the caller sees; `None` for no item. `session` returns the scope
    /// of an existing session. Of entities, this decides on anchors alone: facts grant the others
    /// ([`View::grants`]).
    pub(crate) fn admits(
        &self,
        class: &Class,
        session: impl Fn(SessionId) -> Option<SessionScope>,
    ) -> Option<u64> {
        // Outside a project there are no entities (B3).
        let is_context = class.kind != Kind::Entity as u8 || self.project.is_some();
        // A parent that moved to another project is out of reach like any other session there.
        let project = match class.home {
            Home::Pinned(project) => project,
            Home::Session(id) => session(id)?.project,
        };
        if !is_context || project != self.project {
            return None;
        }
        self.grants(class, session)
    }

    /// The last item number at which facts of a class grant their names to the caller; `None` for none.
    /// Unlike [`View::admits`], it ignores the project. A name keeps its project tag when its fact's session
    /// moves elsewhere (B9).
    pub(crate) fn grants(
        &self,
        class: &Class,
        session: impl Fn(SessionId) -> Option<SessionScope>,
    ) -> Option<u64> {
        let layer = class.layer;
        let in_scope = match self.scope {
            MemoryScope::None => false,
            MemoryScope::Full => true,
            MemoryScope::NeutralAndRelationship => !class.intimate,
            MemoryScope::RelationshipOnly => !class.intimate && layer != Layer::Profile as u8,
            MemoryScope::NeutralOnly => !class.intimate && layer == Layer::Profile as u8,
            MemoryScope::InsightsOnly => layer == Layer::Profile as u8,
        };
        let known_to_persona = layer == Layer::Profile as u8 || class.persona == self.persona;
        if !(in_scope && known_to_persona) {
            return None;
        }
        let Home::Session(id) = class.home else { return Some(u64::MAX) };
        let scope = session(id)?;
        match self.lineage.iter().find(|(ancestor, _)| *ancestor == id) {
            Some((_, up_to)) => Some(*up_to),
            // The contents of a fork stay in it (C4).
            None => (!scope.forked).then_some(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_PROJECT: SessionId = SessionId(1);
    const IN_OTHER: SessionId = SessionId(2);
    const LOOSE: SessionId = SessionId(3);
    const FORK: SessionId = SessionId(4);
    const P: ProjectId = ProjectId(1);
    const Q: ProjectId = ProjectId(2);

    fn session(id: SessionId) -> Option<SessionScope> {
        let scope = |project, forked| Some(SessionScope { project, forked });
        match id {
            IN_PROJECT => scope(Some(P), false),
            IN_OTHER => scope(Some(Q), false),
            LOOSE => scope(None, false),
            FORK => scope(None, true),
            _ => None,
        }
    }

    fn view(project: Option<ProjectId>) -> View {
        View { project, persona: PersonaId::DEFAULT, scope: MemoryScope::Full, lineage: Vec::new() }
    }

    fn episode(id: SessionId) -> Class {
        Class::new(Home::Session(id), Kind::Episode, Layer::Episode, PersonaId::DEFAULT, false)
    }

    #[test]
    fn b1_b5_projects_and_the_pool_cannot_read_each_other() {
        let homes = [IN_PROJECT, IN_OTHER, LOOSE];
        for (asker, sees) in [(Some(P), IN_PROJECT), (Some(Q), IN_OTHER), (None, LOOSE)] {
            for home in homes {
                assert_eq!(view(asker).admits(&episode(home), session).is_some(), home == sees);
            }
            for pinned in [None, Some(P), Some(Q)] {
                let fact = Class::new(Home::Pinned(pinned), Kind::Fact, Layer::Profile, PersonaId(9), false);
                assert_eq!(view(asker).admits(&fact, session).is_some(), pinned == asker);
            }
        }
    }

    #[test]
    fn b11_what_is_not_known_is_not_seen() {
        assert_eq!(view(None).admits(&episode(SessionId(77)), session), None);
        let lost = View { lineage: vec![(SessionId(77), u64::MAX)], ..view(None) };
        assert_eq!(lost.admits(&episode(SessionId(77)), session), None);
        let nothing = View { scope: MemoryScope::None, ..view(None) };
        assert_eq!(nothing.admits(&episode(LOOSE), session), None);
    }

    #[test]
    fn a_fork_is_seen_by_itself_alone_and_sees_its_parent_up_to_its_beginning() {
        assert_eq!(view(None).admits(&episode(FORK), session), None);
        let fork = View { lineage: vec![(FORK, u64::MAX), (LOOSE, 41)], ..view(None) };
        assert_eq!(fork.admits(&episode(FORK), session), Some(u64::MAX));
        assert_eq!(fork.admits(&episode(LOOSE), session), Some(41));
    }

    #[test]
    fn d8_each_scope_admits_its_layers() {
        use Layer::{Episode, Profile, Relationship};
        let cases = [
            (MemoryScope::Full, [true, true, true, true, true, true]),
            (MemoryScope::NeutralAndRelationship, [true, false, true, false, true, false]),
            (MemoryScope::RelationshipOnly, [false, false, true, false, true, false]),
            (MemoryScope::NeutralOnly, [true, false, false, false, false, false]),
            (MemoryScope::InsightsOnly, [true, true, false, false, false, false]),
            (MemoryScope::None, [false; 6]),
        ];
        for (scope, admitted) in cases {
            let view = View { scope, ..view(None) };
            let layers = [Profile, Relationship, Episode]
                .into_iter()
                .flat_map(|layer| [(layer, false), (layer, true)]);
            for ((layer, intimate), expected) in layers.zip(admitted) {
                let class = Class::new(Home::Session(LOOSE), Kind::Fact, layer, PersonaId::DEFAULT, intimate);
                assert_eq!(
                    view.admits(&class, session).is_some(),
                    expected,
                    "{scope:?} {layer:?} {intimate}"
                );
            }
        }
    }
}
