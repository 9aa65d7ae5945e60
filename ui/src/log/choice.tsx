import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { ALL, type Only, type Sources } from "./sources";

interface ChoiceProps {
  only: Signal<Only>;
  sources: Sources;
  /** Instances that may be chosen though none of their logs is read. */
  instances: readonly string[];
}

/** One instance alone, or one rank. Absent where there is nothing to choose. */
export function Choice({ only, sources, instances }: ChoiceProps) {
  const chosen = only.value;
  const known = new Set([...instances, ...sources.instances, ...(chosen.instance === null ? [] : [chosen.instance])]);
  const names = [...known].sort();
  const ranks = sources.ranks(chosen.instance);
  return (
    <>
      {names.length > 1 && (
        <Group label="Instances">
          <Chip on={chosen.instance === null} choose={() => (only.value = ALL)}>
            All
          </Chip>
          {names.map((instance) => (
            <Chip
              key={instance}
              on={chosen.instance === instance}
              choose={() => (only.value = { instance, rank: null })}
            >
              {instance}
            </Chip>
          ))}
        </Group>
      )}
      {(ranks.length > 1 || chosen.rank !== null) && (
        <Group label="Ranks">
          <Chip on={chosen.rank === null} choose={() => (only.value = { ...chosen, rank: null })}>
            All ranks
          </Chip>
          {ranks.map((rank) => (
            <Chip key={rank} on={chosen.rank === rank} choose={() => (only.value = { ...chosen, rank })}>
              Rank {rank}
            </Chip>
          ))}
        </Group>
      )}
    </>
  );
}

function Group({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="log-choice" role="group" aria-label={label}>
      {children}
    </div>
  );
}

function Chip({ on, choose, children }: { on: boolean; choose: () => void; children: ComponentChildren }) {
  return (
    <button type="button" aria-pressed={on} onClick={choose}>
      {children}
    </button>
  );
}
