/**
 * What this machine lacks, in one line, or null if the studio runs here. Uses nothing newer than Node 16, so that an
 * old Node gets the line and not a syntax error.
 *
 * @param {{ platform: string, arch: string, nodeVersion: string, glibcVersion: string | undefined }} machine
 * @returns {string | null}
 */
export function missingFrom(machine) {
  const missing = [];
  if (machine.platform !== 'linux' || machine.arch !== 'x64') {
    missing.push(`Linux on x64 (this is ${machine.platform} on ${machine.arch})`);
  } else if (!machine.glibcVersion) {
    missing.push('glibc 2.34 or newer (this Linux has another C library)');
  } else if (!atLeast(machine.glibcVersion, '2.34')) {
    missing.push(`glibc 2.34 or newer (this is ${machine.glibcVersion})`);
  }
  if (!atLeast(machine.nodeVersion, '20.19')) missing.push(`Node.js 20.19 or newer (this is ${machine.nodeVersion})`);
  return missing.length ? `Shard Studio needs ${missing.join(' and ')}.` : null;
}

/** The facts that `missingFrom` judges, of the machine and the Node that run this. */
export function thisMachine() {
  const { platform, arch, versions } = process;
  // The network part of a report looks names up, which can take seconds.
  process.report.excludeNetwork = true;
  const { header } = process.report.getReport();
  return { platform, arch, nodeVersion: versions.node, glibcVersion: header.glibcVersionRuntime };
}

function atLeast(version, least) {
  const [major, minor] = version.split('.').map(Number);
  const [leastMajor, leastMinor] = least.split('.').map(Number);
  return major > leastMajor || (major === leastMajor && minor >= leastMinor);
}
