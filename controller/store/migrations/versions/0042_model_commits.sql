-- All starts of a revision run the same weights. {org/name@revision: commit}, of its model, drafts and adapters.
alter table revisions
    add column model_commits jsonb not null default '{}'  -- (instances, hub) the first that is known of each stays
