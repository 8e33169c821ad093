import { checkConfig } from '../../engine/config.ts';
import { budgetVerdict } from '../../engine/schedule/budget.ts';
import { planExperiment } from '../../engine/schedule/plan.ts';
import { verdictHere } from './fit-here.ts';
import { compareOverLink } from './over-link.ts';
import type { PlanAnswer, PlanJob, PlanOutcome, PlanRequest } from './prediction-protocol.ts';

/** The engine's own planner, beside the page: typing never waits for it. */
const scope = self as unknown as {
  onmessage: ((event: MessageEvent<PlanRequest>) => void) | null;
  postMessage(answer: PlanAnswer): void;
};

function outcomeOf({ config, profile, wanted, place }: PlanJob): PlanOutcome {
  const checked = checkConfig(config);
  if (!checked.config) return { plan: null, problem: checked.problems.map(({ message }) => message).join('\n') };
  const startMs = performance.now();
  try {
    if (wanted === 'fitting')
      return { plan: null, problem: null, fitting: budgetVerdict(checked.config, profile)?.fitting ?? [] };
    if (wanted === 'link') return { plan: null, problem: null, link: compareOverLink(checked.config, profile) };
    if (place) return { plan: null, problem: null, here: verdictHere(checked.config, place) };
    const plan = planExperiment(checked.config, profile);
    return { plan, problem: null, tookMs: performance.now() - startMs };
  } catch (error) {
    return { plan: null, problem: error instanceof Error ? error.message : String(error) };
  }
}

scope.onmessage = ({ data: { id, jobs } }) => {
  jobs.forEach((job, i) => {
    scope.postMessage({ id, key: job.key, outcome: outcomeOf(job), last: i === jobs.length - 1 });
  });
};
