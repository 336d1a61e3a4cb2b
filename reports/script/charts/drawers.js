// What draws a figure of the page, by the name that its section gives it.
import { algorithmsPanels } from "./algorithms.js";
import { bucketsPanels, heatPanels } from "./buckets.js";
import { busPanels, fitPanels } from "./bus.js";
import { peakMemoryPanels, statesPanels } from "./memory.js";
import { energyPanels, sharesPanels, stepPartsPanels, usagePanels } from "./parts.js";
import { frontPanels, rankingPanels } from "./ranking.js";
import { scalingPanels } from "./scaling.js";
import { sidesMemoryPanels, sidesPerGbPanels, sidesPerJoulePanels, sidesRatiosPanels } from "./sides.js";
import { sidesBucketsPanels, sidesScalingPanels } from "./sides_curves.js";
import { driftPanels, orderPanels, spreadPanels } from "./trust.js";

export const drawers = {
  algorithms: algorithmsPanels,
  buckets: bucketsPanels,
  heat: heatPanels,
  bus: busPanels,
  fit: fitPanels,
  peak_memory: peakMemoryPanels,
  states: statesPanels,
  step_parts: stepPartsPanels,
  shares: sharesPanels,
  usage: usagePanels,
  energy: energyPanels,
  ranking: rankingPanels,
  front: frontPanels,
  scaling: scalingPanels,
  sides_ratios: sidesRatiosPanels,
  sides_per_joule: sidesPerJoulePanels,
  sides_per_gb: sidesPerGbPanels,
  sides_memory: sidesMemoryPanels,
  sides_buckets: sidesBucketsPanels,
  sides_scaling: sidesScalingPanels,
  spread: spreadPanels,
  drift: driftPanels,
  order: orderPanels,
};
