-- AlterTable
ALTER TABLE "Run" ADD COLUMN "latest" TEXT;
