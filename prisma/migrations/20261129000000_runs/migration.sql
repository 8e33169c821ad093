-- CreateTable
CREATE TABLE "Run" (
    "id" TEXT NOT NULL PRIMARY KEY,
    "name" TEXT NOT NULL,
    "state" TEXT NOT NULL,
    "reason" TEXT NOT NULL,
    "group" TEXT,
    "config" JSONB NOT NULL,
    "createdAt" DATETIME NOT NULL,
    "startedAt" DATETIME,
    "endedAt" DATETIME,
    "lastSeq" INTEGER NOT NULL DEFAULT 0,
    "stepsDone" INTEGER NOT NULL DEFAULT 0,
    "lossMean" TEXT,
    "iterationMs" REAL,
    "peakBytes" BIGINT,
    "liveBytes" BIGINT,
    "byCategory" JSONB,
    "params" BIGINT,
    "adapters" JSONB,
    "predicted" JSONB,
    "error" JSONB
);

-- CreateTable
CREATE TABLE "EventChunk" (
    "runId" TEXT NOT NULL,
    "firstSeq" INTEGER NOT NULL,
    "lastSeq" INTEGER NOT NULL,
    "bytes" BLOB NOT NULL,

    PRIMARY KEY ("runId", "firstSeq"),
    CONSTRAINT "EventChunk_runId_fkey" FOREIGN KEY ("runId") REFERENCES "Run" ("id") ON DELETE CASCADE ON UPDATE CASCADE
);

-- CreateTable
CREATE TABLE "Checkpoint" (
    "runId" TEXT NOT NULL,
    "name" TEXT NOT NULL,
    "format" TEXT NOT NULL,
    "step" INTEGER NOT NULL,
    "sha256" TEXT NOT NULL,
    "bytes" BIGINT NOT NULL,
    "createdAt" DATETIME NOT NULL,

    PRIMARY KEY ("runId", "name"),
    CONSTRAINT "Checkpoint_runId_fkey" FOREIGN KEY ("runId") REFERENCES "Run" ("id") ON DELETE CASCADE ON UPDATE CASCADE
);

-- CreateIndex
CREATE INDEX "Run_state_idx" ON "Run"("state");

-- CreateIndex
CREATE INDEX "Run_group_idx" ON "Run"("group");
